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
		var without, listings atomic.Int32 // answers that lack it, from now on; describe calls
		listing := func(cloud.ENIFilter) { listings.Add(1) }
		cl := &api{Cloud: w.cloud, listing: listing, instances: func(ids []string) ([]cloud.Instance, error) {
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
		for seen := listings.Load(); listings.Load() == seen; { // a listing that has it would outrank the answers
			pass(time.Second)
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

// A suspicion stands until it is answered: that EC2 fails to answer the second
// time it is asked leaves neither the question open nor its failure told for ever.
func TestSuspicionOutlivesAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var asked, stopped atomic.Int32
		cl := &api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			if n := asked.Add(1); n == 2 {
				return nil, &cloud.Error{Class: cloud.Transient, Op: "DescribeInstances", Message: "no reply"}
			}
			return []cloud.Instance{{ID: ids[0], Type: "m5.xlarge", State: map[int32]string{0: "running", 1: "stopped"}[stopped.Load()]}}, nil
		}}
		p := w.operator(cl)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(minute)
		for _, want := range []string{"", "stopped"} {
			asked.Store(0)
			p.Suspect(n.name)
			pass(time.Second) // the first answer is that it runs
			if want == "stopped" {
				stopped.Store(1)
			}
			pass(20 * time.Second)
			if s := n.last(); (s.LastError != "") != (want == "stopped") || s.LastError != "" && s.Class != cloud.Conflict {
				t.Errorf("want it %s, after %d calls: %+v", want, asked.Load(), s)
			}
		}
		p.stop()
	})
}
