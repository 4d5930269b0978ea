package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The pictures in the folder are those of their sources, and well-formed.
func TestPicturesAreCurrent(t *testing.T) {
	sources, err := filepath.Glob("*.yaml")
	if err != nil || len(sources) < 6 {
		t.Fatalf("%d pictures: %v", len(sources), err)
	}
	for _, source := range sources {
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		want, err := draw(data)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		got, err := os.ReadFile(strings.TrimSuffix(source, ".yaml") + ".svg")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the picture is not current (make generate): %v", source, err)
		}
		var document struct{}
		if err := xml.Unmarshal(want, &document); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// Mistakes in a source are reported.
func TestMistakesInSources(t *testing.T) {
	const frame = "title: a\nwidth: 100\nheight: 100\n"
	for source, want := range map[string]string{
		"width: 100\nheight: 100\n": "title, width and height",
		frame + "colour: red\n":     "colour",
		frame + "boxes: [{id: a, kind: cloud, left: 0, top: 0, width: 10, height: 10}]\n":                                                           "want group",
		frame + "boxes: [{id: a, kind: pod, left: 95, top: 0, width: 10, height: 10}]\n":                                                            "not within",
		frame + "arrows: [{from: \"a:left:50\", to: \"b:left:50\"}]\n":                                                                              "no such box",
		frame + "boxes: [{id: a, kind: pod, left: 0, top: 0, width: 10, height: 10}, {id: a, kind: pod, left: 0, top: 0, width: 10, height: 10}]\n": "two of this name",
		frame + "boxes: [{id: a, kind: pod, left: 0, top: 0, width: 10, height: 10}]\narrows: [{from: \"a:over:50\", to: \"a:left:50\"}]\n":         "side",
	} {
		if _, err := draw([]byte(source)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("draw(%q) = %v, want %q", source, err, want)
		}
	}
}
