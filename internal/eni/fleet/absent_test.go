package fleet

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// One answer without an instance, as a part of EC2 that trails the others gives,
// is no end: it is asked for again before anything follows.
func TestOneAnswerWithoutTheInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var without atomic.Int32 // answers that lack it, from now on
		cl := &api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			if without.Add(-1) >= 0 {
				return nil, nil
			}
			return []cloud.Instance{{ID: ids[0], Type: "m5.xlarge", State: "running"}}, nil
		}}
		p := w.operator(cl)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(minute)
		for range 3 {
			without.Store(1)
			p.Suspect(n.name)
			for range 60 {
				pass(time.Second)
				if s := n.last(); s.Vanished || s.LastError != "" {
					t.Fatalf("after one answer: %+v", s)
				}
			}
			if without.Load() >= 0 {
				t.Fatal("it was not asked for again")
			}
		}
		without.Store(1000)
		p.Suspect(n.name)
		pass(10 * time.Second)
		if s := n.last(); !s.Vanished {
			t.Errorf("after one answer and another: %+v", s)
		}
		if asked := 1000 - without.Load(); asked != 2 {
			t.Errorf("asked %d times, want 2", asked)
		}
		p.stop()
	})
}
