package eni

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
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
		l := newLookups(0)
		l.unresolved["a"] = c.call
		l.seen("a", c.k, unix(c.seconds))
		check.Equal(t, !l.blocksGrowth("a"), c.resolved, "%s: resolved", c.name)
		if again := l.at["a"]; c.resolved != again.IsZero() || !c.resolved && !again.Equal(unix(c.seconds+1)) {
			t.Errorf("%s: described again at %v", c.name, again)
		}
	}
}

// The more often a node says that a link went or came, the longer EC2 is not asked about it. After the
// first flip, or a long time, it is asked at once.
func TestLinksThatFlip(t *testing.T) {
	for _, c := range []struct {
		name  string
		every int // seconds between flips
		most  int // looks in 20 minutes
	}{
		{"each second", 1, 20},
		{"each 40 seconds", 40, 35},
		{"each 11 minutes", 660, 25},
	} {
		v := newView(time.Minute, 0)
		v.enis["a"] = newKnown(facts{ID: "a", Attachment: &cloud.Attachment{}})
		looks := 0
		for s := range 1200 {
			var missing []string
			if s/c.every%2 == 0 {
				missing = []string{"a", "b"} // b is not the node's
			}
			v.missingLinks(missing, unix(s))
			id, ok := v.lookups.next(unix(s), false)
			if !ok && (s == 0 || s == 660 && c.every == 660) {
				t.Errorf("%s: no look after %d s", c.name, s)
			}
			if !ok {
				continue
			}
			looks++
			v.lookups.done(id)
			v.lookups.seen(id, v.enis[id], unix(s))
		}
		t.Logf("%s: %d looks", c.name, looks)
		if flips := v.lookups.links.flips; looks > c.most || len(flips) != 1 {
			t.Errorf("%s: %d looks, want %d at most; flips of %v", c.name, looks, c.most, flips)
		}
	}
}

// A detachment that hangs is not polled every two seconds for hours.
func TestDetachPoll(t *testing.T) {
	for _, c := range []struct{ since, want time.Duration }{{0, 2 * second}, {8 * second, 2 * second}, {40 * second, 10 * second}, {time.Hour, time.Minute}} {
		k := known{replied: unix(0)}
		check.Equal(t, k.detachPoll(unix(0).Add(c.since)), c.want, "after %v", c.since)
	}
	check.Equal(t, (&known{}).detachPoll(unix(0)), 10*second, "begun by someone else")
}

const second = time.Second

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

func TestProbesArePaced(t *testing.T) {
	var p podProbe
	for _, step := range []struct {
		seconds, waiting int
		want             bool
	}{
		{0, 0, false},
		{1, 1, true}, // a pod came
		{2, 1, false},
		{3, 2, false}, // another, too soon
		{10, 2, false},
		{11, 2, true}, // for that one
		{30, 2, false},
		{31, 1, false}, // one went
		{32, 2, true},  // and tries again
		{33, 3, false},
		{34, 0, false}, // nobody waits any more
		{50, 0, false},
	} {
		check.Equal(t, p.next(step.waiting, unix(step.seconds)), step.want, "at %d s with %d waiting", step.seconds, step.waiting)
	}
}
