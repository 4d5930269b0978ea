package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/test/harness/check"
)

// busy is the cloud behind a limiter that other callers keep busy: a call that sets DeleteOnTermination
// is served only once its priority is as high as theirs.
type busy struct {
	*cloudfake.Cloud
	waiting atomic.Int32 // calls that wait now
	mu      sync.Mutex   // guards served
	served  []time.Time
}

func (b *busy) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	if cloud.PriorityOf(ctx) < cloud.Begun {
		b.waiting.Add(1)
		defer b.waiting.Add(-1)
		<-ctx.Done()
		return &cloud.Error{Class: cloud.Throttled, Op: "ModifyNetworkInterfaceAttribute", Err: context.Cause(ctx)}
	}
	b.mu.Lock()
	b.served = append(b.served, time.Now())
	b.mu.Unlock()
	return b.Cloud.SetDeleteOnTermination(ctx, id, attachment, on)
}

// A node that waits for DeleteOnTermination to be set serves its pods, reports no trouble, and has it
// set after two minutes, although others never stop calling.
func TestDeleteOnTerminationYields(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		cl := &busy{Cloud: w.cloud}
		p := w.operator(cl)
		began := time.Now()
		n := p.set(t, w.objects[0], settings(0, 8)) // on one new ENI
		pass(10 * time.Second)
		if cl.waiting.Load() != 1 || n.available() != 8 {
			t.Fatalf("%d calls wait, %d addresses", cl.waiting.Load(), n.available())
		}
		n.run(20) // more than the one ENI has room for
		pass(time.Second)
		n.wantPods(t, 20)
		check.Equal(t, cl.waiting.Load(), 2, "calls wait")
		pass(30 * time.Second)
		if s := n.last(); s.LastError != "" {
			t.Errorf("status: %+v", s)
		}
		pass(3 * minute)
		p.stop()
		if len(cl.served) != 2 || cl.served[1].Sub(began) > 11*time.Second+2*minute {
			t.Errorf("served at %v, began at %v", cl.served, began)
		}
		for _, e := range w.attached() {
			if !e.Attachment.DeleteOnTermination {
				t.Errorf("%s would outlive its instance", e.ID)
			}
		}
	})
}

// A waiting call is cancelled with its node, and when its reason is gone.
func TestDeleteOnTerminationIsGivenUp(t *testing.T) {
	for name, giveUp := range map[string]func(t *testing.T, p *operator, n *writer){
		"the node is removed": func(_ *testing.T, p *operator, n *writer) { p.Remove(n.name) },
		"the operator ends":   func(_ *testing.T, p *operator, _ *writer) { p.stop() },
		"ENIs are to stay": func(t *testing.T, p *operator, n *writer) {
			s := settings(0, 8)
			s.KeepENIs = true
			p.set(t, n.object, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *world) {
				cl := &busy{Cloud: w.cloud}
				p := w.operator(cl)
				n := p.set(t, w.objects[0], settings(0, 8))
				pass(10 * time.Second)
				if cl.waiting.Load() != 1 {
					t.Fatalf("%d calls wait", cl.waiting.Load())
				}
				giveUp(t, p, n)
				pass(time.Second)
				check.Equal(t, cl.waiting.Load(), 0, "calls wait")
				pass(5 * minute)
				w.apart = true // a node that was removed keeps its ENIs
				if len(cl.served) != 0 {
					t.Errorf("served at %v", cl.served)
				}
			})
		})
	}
}
