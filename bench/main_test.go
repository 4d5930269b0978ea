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
		{"egress", []string{"egress-clients", "egress-throughput", "egress-add", "egress-failover"}, []string{"exec", "ports-add"}},
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

// What needs the virtual machine's kernel is measured there, by a bench of the same groups inside.
func TestGroupsAreMeasuredWhereTheyCanBe(t *testing.T) {
	chosen, err := choose("exec,egress")
	if err != nil {
		t.Fatal(err)
	}
	names := func(groups []group) (list []string) {
		for _, g := range groups {
			list = append(list, g.name)
		}
		return list
	}
	here, machine := (&bench{}).split(chosen)
	if got, want := names(here), []string{"exec", "egress-clients"}; !slices.Equal(got, want) {
		t.Errorf("measured here are %q, expected %q", got, want)
	}
	if got, want := names(machine), []string{"egress-throughput", "egress-add", "egress-failover"}; !slices.Equal(got, want) {
		t.Errorf("measured in the virtual machine are %q, expected %q", got, want)
	}
	if here, machine := (&bench{options: options{inside: true}}).split(chosen); len(here) != len(chosen) || len(machine) != 0 {
		t.Errorf("inside the virtual machine, %q are measured there and %q elsewhere, expected all there", names(here), names(machine))
	}
}
