package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 3}, 2},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestBudget(t *testing.T) {
	most, least := budget{limit: 1.5}, budget{limit: 0.95, atLeast: true}
	for _, c := range []struct {
		b    budget
		r    Result
		want bool
	}{
		{most, Result{Value: 3, Reference: 2, Ratio: 1.5}, true},
		{most, Result{Value: 4, Reference: 2, Ratio: 2}, false},
		{most, Result{Value: 1.4}, true},
		{most, Result{Value: 1.6}, false},
		{least, Result{Value: 1, Reference: 1, Ratio: 1}, true},
		{least, Result{Value: 9, Reference: 10, Ratio: 0.9}, false},
	} {
		if got := c.b.met(c.r); got != c.want {
			t.Errorf("%+v met by %+v: %v, want %v", c.b, c.r, got, c.want)
		}
	}
}

// Figures that were not measured this time stay, in their places.
func TestEarlierResultsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	now := []Result{{Name: "b", Value: 5}, {Name: "c", Value: 6}}
	if got, err := besides(path, now); err != nil || !slices.Equal(got, now) {
		t.Errorf("without a file: %+v, %v", got, err)
	}
	if err := write(path, []Result{{Name: "a", Value: 1}, {Name: "b", Value: 2}, {Name: "d", Value: 3}}); err != nil {
		t.Fatal(err)
	}
	want := []Result{{Name: "a", Value: 1}, {Name: "b", Value: 5}, {Name: "d", Value: 3}, {Name: "c", Value: 6}}
	if got, err := besides(path, now); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := os.WriteFile(path, []byte("no list"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := besides(path, now); err == nil {
		t.Error("results that cannot be read are written over")
	}
}
