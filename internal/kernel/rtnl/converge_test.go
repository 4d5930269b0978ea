package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// entry has a key and a value, like the destination and gateway of a route.
type entry struct{ key, value string }

func entries(list string) (out []entry) {
	for _, f := range strings.Fields(list) {
		out = append(out, entry{f[:1], f[1:]})
	}
	return out
}

func TestCompare(t *testing.T) {
	kind := Kind[entry, string]{
		Key:  func(e entry) string { return e.key },
		Same: func(desired, observed entry) bool { return desired == observed },
	}
	for _, c := range []struct{ desired, observed, missing, changed, extra string }{
		{"", "", "", "", ""},
		{"b1 a1", "", "b1 a1", "", ""},
		{"", "b1 a1", "", "", "b1 a1"},
		{"a1 b1", "b1 a1", "", "", ""},
		{"a1 b2 c1", "c1 b1 d1", "a1", "b2", "d1"},
		{"a1 a1", "", "a1", "", ""}, //nolint:dupword // desired twice
	} {
		d := kind.Compare(entries(c.desired), entries(c.observed))
		var changed []entry
		for _, ch := range d.Changed {
			changed = append(changed, ch.Desired)
		}
		if !slices.Equal(d.Missing, entries(c.missing)) || !slices.Equal(changed, entries(c.changed)) || !slices.Equal(d.Extra, entries(c.extra)) {
			t.Errorf("Compare(%q, %q) = %v", c.desired, c.observed, d)
		}
	}
}

// Set stops at the first error, RemoveAll continues, and both ignore a missing object on removal.
func TestSetAndRemoveAll(t *testing.T) {
	broken := errors.New("broken")
	var did []string
	change := func(what string) func(string) error {
		return func(o string) error {
			did = append(did, what+o)
			return map[string]error{"x": broken, "gone": fmt.Errorf("netlink: %w", unix.ESRCH)}[o]
		}
	}
	kind := Kind[string, string]{
		Key: func(o string) string { return o }, Name: func(o string) string { return "object " + o },
		Add: change("+"), Remove: change("-"),
	}
	changed, err := kind.Set(Diff[string]{Missing: []string{"a", "x", "b"}})
	if !slices.Equal(changed, []string{"object a"}) || !errors.Is(err, broken) || err.Error() != "add object x: broken" {
		t.Errorf("Set() = %q, %v, want object a and an error", changed, err)
	}
	changed, err = kind.Set(Diff[string]{Missing: []string{"a"}, Changed: []Change[string]{{Desired: "b", Observed: "c"}}})
	if !slices.Equal(changed, []string{"object a", "object b"}) || err != nil {
		t.Errorf("Set() = %q, %v, want objects a and b", changed, err)
	}
	changed, err = kind.RemoveAll([]string{"a", "x", "gone"})
	if !slices.Equal(changed, []string{"removed object a", "removed object gone"}) || !errors.Is(err, broken) {
		t.Errorf("RemoveAll() = %q, %v, want two removals and an error", changed, err)
	}
	if want := []string{"+a", "+x", "+a", "+b", "-a", "-x", "-gone"}; !slices.Equal(did, want) {
		t.Errorf("calls = %q, want %q", did, want)
	}
}

// Desired objects equal those that the kernel returns for them.
func TestRouteAndRuleKeys(t *testing.T) {
	all, host := netip.MustParsePrefix("::/0"), netip.MustParsePrefix("10.0.0.1/32")
	for name, pair := range map[string][2]netlink.Route{
		"defaults": {{Family: unix.AF_INET6, LinkIndex: 3, Dst: IPNet(all)}, {Family: unix.AF_INET6, LinkIndex: 3, Table: 254, Type: 1, Priority: 1024}},
		"unreachable route on lo": {
			{Family: unix.AF_INET6, Dst: IPNet(all), Type: unix.RTN_UNREACHABLE, Priority: 7},
			{Family: unix.AF_INET6, LinkIndex: 1, Table: 254, Type: unix.RTN_UNREACHABLE, Priority: 7},
		},
	} {
		if RouteOf(pair[0]) != RouteOf(pair[1]) {
			t.Errorf("%s: RouteOf() = %v and %v, want the same", name, RouteOf(pair[0]), RouteOf(pair[1]))
		}
	}
	base := netlink.Route{Family: unix.AF_INET, LinkIndex: 3, Dst: IPNet(host), Gw: host.Addr().AsSlice()}
	for name, change := range map[string]func(*netlink.Route){
		"link":        func(r *netlink.Route) { r.LinkIndex++ },
		"table":       func(r *netlink.Route) { r.Table = 7 },
		"gateway":     func(r *netlink.Route) { r.Gw = nil },
		"source":      func(r *netlink.Route) { r.Src = host.Addr().AsSlice() },
		"type":        func(r *netlink.Route) { r.Type = unix.RTN_UNREACHABLE },
		"destination": func(r *netlink.Route) { r.Dst = nil },
	} {
		other := base
		change(&other)
		if RouteOf(base) == RouteOf(other) {
			t.Errorf("a route with another %s has the same key", name)
		}
	}
	rules := []Rule{
		{Family: unix.AF_INET, Priority: 512, Table: 19000},
		{Family: unix.AF_INET, Priority: 512},
		{Family: unix.AF_INET, Priority: 512, Goto: 600},
		{Family: unix.AF_INET6, Priority: 1, Table: 7, From: all, To: all, In: "a", Out: "b", Invert: true, Mark: 1, Mask: 3},
	}
	for i, r := range rules {
		for k, other := range rules {
			if got := RuleOf(other.Kernel()); (got == r) != (i == k) {
				t.Errorf("rule %+v converted to the library and back = %+v; want it to equal %+v: %t", other, got, r, i == k)
			}
		}
	}
}
