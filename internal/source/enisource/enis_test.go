package enisource

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/source"
)

// What the data path has to do follows from what is published, what it has, and which links are missing.
func TestDifferences(t *testing.T) {
	now := clock.NewFake(time.Unix(1000, 0))
	n := newENIs(now, slog.New(slog.DiscardHandler))
	held := map[string]bool{}
	holds := func(id string) bool { return held[id] }
	one, two := eni.ENI{ID: "eni-1", DeviceIndex: 1, Serves: true}, eni.ENI{ID: "eni-2", DeviceIndex: 1, Serves: true}
	want := func(when, remove, set string) {
		t.Helper()
		r, s := n.differences(holds, func(e eni.ENI) eni.ENI { return e })
		var ids []string
		for _, e := range s {
			ids = append(ids, e.ID)
		}
		if fmt.Sprint(r) != remove || fmt.Sprint(ids) != set {
			t.Errorf("%s: remove %v, set %v; want %s, %s", when, r, ids, remove, set)
		}
	}
	n.publish([]eni.ENI{one, {ID: "eni-0"}}, holds)
	want("a new ENI, and one that serves no pods", "[]", "[eni-1]")
	if !n.set(one, fmt.Errorf("not yet: %w", source.ErrNoLink)) || !n.linkGone("eni-1", n.has("eni-1")) || len(n.missingLinks()) > 0 {
		t.Error("a link that is to come is missing at once")
	}
	if now.Advance(linkPatience); len(n.missingLinks()) != 1 {
		t.Error("it has not come for long, and is not missing")
	}
	n.set(one, nil)
	want("once the data path has it", "[]", "[]")
	if !n.linkGone("eni-1", true) || n.linkGone("eni-1", true) || len(n.missingLinks()) != 1 {
		t.Error("a link that went is news once, and missing at once")
	}
	want("its link is gone", "[]", "[eni-1]")
	n.set(one, nil)
	held["eni-1"] = true
	n.publish(nil, holds)
	want("it is detached, and a pod has an address of it", "[]", "[]")
	n.publish([]eni.ENI{two}, holds)
	want("another took its place", "[eni-1]", "[eni-2]")
	n.removed("eni-1")
	want("that is removed", "[]", "[eni-2]")
}
