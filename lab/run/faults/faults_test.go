package faults

import (
	"slices"
	"testing"
)

// A seed repeats the decisions, and another one changes them.
func TestSeedRepeatsDecisions(t *testing.T) {
	draw := func(seed string) (all []string) {
		t.Helper()
		t.Setenv(EnvVar, seed)
		f, err := New()
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			all = append(all, f.Shuffled("tool", "daemon", "API server")...)
		}
		return all
	}
	if first := draw("7"); !slices.Equal(first, draw("7")) || slices.Equal(first, draw("8")) {
		t.Errorf("seed 7: %v, then %v; seed 8: %v", first, draw("7"), draw("8"))
	}
	t.Setenv(EnvVar, "x")
	if _, err := New(); err == nil {
		t.Error("a seed that is no number is accepted")
	}
}

func TestMissing(t *testing.T) {
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	f.Did("tool")
	if got := f.Missing("tool", "daemon"); !slices.Equal(got, []string{"daemon"}) || f.Count("tool") != 1 {
		t.Errorf("missing = %v, counts %s", got, f.Counts())
	}
	if f.Reset(); f.Count("tool") != 0 {
		t.Error("Reset kept a count")
	}
}
