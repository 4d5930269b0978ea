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
			p.CheckInstance(n.name)
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
		for i := 0; i < 5 && !n.last().Vanished; i++ { // a listing between two answers has it, and outranks them
			p.CheckInstance(n.name)
			pass(10 * time.Second)
		}
		if s, asked := n.last(), 1000-without.Load(); !s.Vanished || asked < 2 || asked > 10 {
			t.Errorf("after %d answers without it: %+v; want it vanished after two in a row", asked, s)
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
			p.CheckInstance(n.name)
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
