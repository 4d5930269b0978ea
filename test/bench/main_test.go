package main

import (
	"os"
	"slices"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berth", "berthd", "berth-operator")) }

func TestGroupsAreChosenByName(t *testing.T) {
	for _, c := range []struct {
		only  string
		has   []string
		hasNo []string
	}{
		{"", []string{"size", "scale-join"}, onDemand},
		{"scale", []string{"scale-join", "scale-operator"}, []string{"size", "limiter-fill", hugeGroup}},
		{"limiter", []string{"limiter-fill", "limiter-throttled"}, []string{"scale-join", "exec"}},
		{"pools", []string{"pools-book", "pools-requests", "pools-add"}, []string{"scale-join", "exec"}},
		{"exec,limiter-fill", []string{"exec", "limiter-fill"}, []string{"limiter-throttled"}},
		{hugeGroup, []string{hugeGroup}, []string{"size", amazonGroup}},
		{amazonGroup, []string{amazonGroup}, []string{"size", hugeGroup}},
	} {
		chosen, err := choose(c.only)
		if err != nil {
			t.Errorf("choose(%q): %v", c.only, err)
		}
		has := func(name string) bool {
			return slices.ContainsFunc(chosen, func(g group) bool { return g.name == name })
		}
		for _, name := range c.has {
			if !has(name) {
				t.Errorf("choose(%q) lacks %s", c.only, name)
			}
		}
		for _, name := range c.hasNo {
			if has(name) {
				t.Errorf("choose(%q) has %s", c.only, name)
			}
		}
	}
	if _, err := choose("scale,nope"); err == nil {
		t.Error("choose takes a group that there is not")
	}
}
