package nodenetwork

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// What has times of its own and is not listed would never be seen to.
func TestEveryTimedPartIsAmongTheTimers(t *testing.T) {
	listed := (&node{}).timers()
	fields, kind, n := reflect.TypeFor[node](), reflect.TypeFor[timed](), 0
	for i := range fields.NumField() {
		f := fields.Field(i)
		if !reflect.PointerTo(f.Type).Implements(kind) {
			continue
		}
		n++
		if !slices.ContainsFunc(listed, func(x timed) bool { return reflect.TypeOf(x) == reflect.PointerTo(f.Type) }) {
			t.Errorf("%s has times of its own and is not among the timers", f.Name)
		}
	}
	if n < 4 || n != len(listed) {
		t.Errorf("%d parts with times, %d timers", n, len(listed))
	}
}

// How long nothing needs to be done, seen at second 10.
func TestWake(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	suppressed := func(until ...int64) ownership {
		w := ownership{suppressed: map[netip.Prefix]time.Time{}}
		for i, s := range until {
			w.suppressed[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)] = at(s)
		}
		return w
	}
	for _, c := range []struct {
		name string
		node *node
		want time.Duration
	}{
		{"nothing", &node{}, 0},
		{"what is due already needs an event", &node{liveness: liveness{deleteAt: at(10)}, eligibility: eligibility{askAt: at(9)}}, 0},
		{"a proof that is asked for again", &node{eligibility: eligibility{askAt: at(15)}}, 5 * time.Second},
		{"a recreated object", &node{eligibility: eligibility{heldUntil: at(12)}}, 2 * time.Second},
		{"the first of what is suppressed", &node{ownership: suppressed(9, 70, 40)}, 30 * time.Second},
		{"a node that is gone", &node{liveness: liveness{deleteAt: at(60)}}, 50 * time.Second},
		{"a request that failed", &node{writes: writes{retry: backoff{Backoff: retry.Backoff{Until: at(11)}}}}, time.Second},
		{"news of the status", &node{writes: writes{newsAt: at(13)}}, 3 * time.Second},
		{"the first of all", &node{writes: writes{newsAt: at(14)}, liveness: liveness{deleteAt: at(12)}, ownership: suppressed(13)}, 2 * time.Second},
	} {
		if got := c.node.wake(at(10)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
