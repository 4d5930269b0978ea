// Package samples compares the formats that programs store in files and objects with samples of earlier releases:
// each release reads everything that its predecessor wrote, and today's programs write everything that earlier ones
// read.
//
// A package keeps samples below testdata/stored, with one directory per release. Samples of a release never change
// after the release; a new field of a format gets a sample in the directory of the next release.
package samples

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Folder is the directory of samples, by release.
const Folder = "testdata/stored"

// Format is a stored format.
type Format struct {
	Files string // pattern of sample names
	// Again reads a sample with today's program, and encodes the result.
	Again func(data []byte) ([]byte, error)
	// Type is the Go type of the format. Each of its fields must be in a sample.
	Type reflect.Type
}

// Check reads and writes every sample of every release. It reports fields of samples that today's program would not
// write, and fields of the type that no sample has. JSON only.
func Check(t *testing.T, formats ...Format) {
	t.Helper()
	releases, err := os.ReadDir(Folder)
	if err != nil || len(releases) == 0 {
		t.Fatalf("no samples of stored formats: %v", err)
	}
	seen := make([]map[string]bool, len(formats))
	for _, release := range releases {
		samples, err := os.ReadDir(filepath.Join(Folder, release.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			i := slices.IndexFunc(formats, func(f Format) bool { ok, _ := path.Match(f.Files, s.Name()); return ok })
			name := filepath.Join(release.Name(), s.Name())
			if i < 0 {
				t.Errorf("format of sample %s is unknown to the test", name)
				continue
			}
			if seen[i] == nil {
				seen[i] = map[string]bool{}
			}
			data, err := os.ReadFile(filepath.Join(Folder, name))
			if err == nil {
				err = check(data, formats[i], seen[i])
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for i, f := range formats {
		for _, field := range fields(f.Type, "", map[reflect.Type]bool{}) {
			if !seen[i][field] {
				t.Errorf("%s: no sample has the field %s: add one to the directory of the next release, and check that the previous release works without the field", f.Files, field)
			}
		}
	}
}

func check(sample []byte, f Format, seen map[string]bool) error {
	again, err := f.Again(sample)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	var v any
	if err := json.Unmarshal(sample, &v); err != nil {
		return err
	}
	note(v, "", seen)
	return Within(sample, again)
}

// Within returns an error about the first value of a JSON document that another document lacks in the same place; nil
// if the other has all of them, and possibly more.
func Within(sample, again []byte) error {
	var was, is any
	if err := json.Unmarshal(sample, &was); err != nil {
		return err
	}
	if err := json.Unmarshal(again, &is); err != nil {
		return fmt.Errorf("written: %w", err)
	}
	return within(was, is, "")
}

func within(was, is any, at string) error {
	switch was := was.(type) {
	case map[string]any:
		now, ok := is.(map[string]any)
		if !ok {
			return fmt.Errorf("%s was an object and is %v", at, is)
		}
		for k, v := range was {
			if err := within(v, now[k], at+"."+k); err != nil {
				return err
			}
		}
		return nil
	case []any:
		now, ok := is.([]any)
		if !ok || len(now) != len(was) {
			return fmt.Errorf("%s was a list of %d and is %v", at, len(was), is)
		}
		for i, v := range was {
			if err := within(v, now[i], fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if !reflect.DeepEqual(was, is) {
		return fmt.Errorf("%s was %v and is %v", at, was, is)
	}
	return nil
}

// note records the fields of a document, without list indexes.
func note(v any, at string, seen map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			seen[at+"."+strings.ToLower(k)] = true
			note(e, at+"."+strings.ToLower(k), seen)
		}
	case []any:
		for _, e := range v {
			note(e, at, seen)
		}
	}
}

// fields returns the fields of a type that encoding/json writes, named like in note. A type with its own encoding has
// none, and the content of maps is not included.
func fields(t reflect.Type, at string, within map[reflect.Type]bool) (out []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || within[t] || writesItself(t) {
		return nil
	}
	within[t] = true
	defer delete(within, t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			out = append(out, fields(f.Type, at, within)...)
		default:
			if name == "" {
				name = f.Name
			}
			name = at + "." + strings.ToLower(name)
			out = append(append(out, name), fields(f.Type, name, within)...)
		}
	}
	return out
}

func writesItself(t reflect.Type) bool {
	for _, i := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()} {
		if t.Implements(i) || reflect.PointerTo(t).Implements(i) {
			return true
		}
	}
	return false
}
