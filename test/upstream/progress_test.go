package main

import (
	"bytes"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 4)
	for _, part := range []string{
		"Will run 4 of 3206 specs\nSSSS", "•S", "SS•", "SS\n------\n", "SS• [FAILED] [12.3 ", "seconds]\n[sig-network] DNS works [It]\n", "text\n",
	} {
		if _, err := p.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != "  FAILED [sig-network] DNS works [It]\n" {
		t.Errorf("told %q", out.String())
	}
	out.Reset()
	p.tick(p.started.Add(chatty - time.Second))
	if out.Len() > 0 {
		t.Errorf("told %q too early", out.String())
	}
	p.tick(p.started.Add(chatty))
	if want := "  3 of 4, 1 failed, 30s\n"; out.String() != want {
		t.Errorf("told %q, expected %q", out.String(), want)
	}
}
