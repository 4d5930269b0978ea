package eni

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

func TestNextLookup(t *testing.T) {
	l := lookups{
		at:         map[string]time.Time{"a": unix(3), "b": unix(2), "c": unix(2), "d": unix(20)},
		unresolved: map[string]unresolvedCall{"a": {}, "d": {}},
	}
	if id, ok := l.next(unix(10), false); id != "b" || !ok {
		t.Errorf("any: %q", id)
	}
	if id, ok := l.next(unix(10), true); id != "a" || !ok {
		t.Errorf("one that growth waits for: %q", id)
	}
	l.forget("a")
	if id, ok := l.next(unix(10), true); ok {
		t.Errorf("not due yet: %q", id)
	}
}

// An unresolved call is resolved by its effect, or once no listing can trail it.
func TestUnresolvedCall(t *testing.T) {
	had, got := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")
	before := map[netip.Prefix]bool{cloud.HostPrefix(had): true}
	with := func(addrs ...netip.Addr) *known { return newKnown(facts{ID: "a", held: cloud.HostPrefixes(addrs)}) }
	for _, c := range []struct {
		name     string
		call     unresolvedCall
		k        *known
		seconds  int
		resolved bool
	}{
		{"an effect", unresolvedCall{before: before, until: unix(15)}, with(had, got), 10, true},
		{"none yet", unresolvedCall{before: before, until: unix(15)}, with(had), 10, false},
		{"none for good", unresolvedCall{before: before, until: unix(15)}, with(had), 15, true},
		{"the ENI is gone", unresolvedCall{before: before, until: unix(15)}, nil, 10, true},
		{"a new ENI is not listed yet", unresolvedCall{made: true, until: unix(15)}, nil, 10, false},
		{"and never will be", unresolvedCall{made: true, until: unix(15)}, nil, 15, true},
	} {
		l := lookups{at: map[string]time.Time{}, unresolved: map[string]unresolvedCall{"a": c.call}}
		l.seen("a", c.k, unix(c.seconds))
		if got := !l.blocksGrowth("a"); got != c.resolved {
			t.Errorf("%s: resolved %v", c.name, got)
		}
		if again := l.at["a"]; c.resolved != again.IsZero() || !c.resolved && !again.Equal(unix(c.seconds+1)) {
			t.Errorf("%s: described again at %v", c.name, again)
		}
	}
}
