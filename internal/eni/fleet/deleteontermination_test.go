package fleet

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
)

// busy is the cloud behind a limiter that others keep busy: a call that sets
// DeleteOnTermination is served only once it is as urgent as theirs.
type busy struct {
	*cloudfake.Cloud

	mu     sync.Mutex // guards the others
	waits  int        // calls that wait now
	served []time.Time
}

func (b *busy) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	if cloud.PriorityOf(ctx) < cloud.Begun {
		b.wait(1)
		defer b.wait(-1)
		<-ctx.Done()
		return &cloud.Error{Class: cloud.Throttled, Op: "ModifyNetworkInterfaceAttribute", Err: context.Cause(ctx)}
	}
	b.mu.Lock()
	b.served = append(b.served, time.Now())
	b.mu.Unlock()
	return b.Cloud.SetDeleteOnTermination(ctx, id, attachment, on)
}

func (b *busy) wait(more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits += more
}

func (b *busy) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits
}

// A node that waits to have DeleteOnTermination set serves its pods all the
// same, is in no trouble, and has it set after two minutes in which others
// never stopped calling.
func TestDeleteOnTerminationYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		cl := &busy{Cloud: w.cloud}
		p := w.operator(cl)
		began := time.Now()
		n := p.set(t, w.objects[0], settings(0, 8)) // on one new ENI
		pass(10 * time.Second)
		if cl.waiting() != 1 || n.available() != 8 {
			t.Fatalf("%d calls wait, %d addresses", cl.waiting(), n.available())
		}
		for range 20 { // more than the one ENI has room for
			n.start()
		}
		p.Kick(n.name)
		pass(time.Second)
		if with, without := n.pods(); with != 20 || without != 0 {
			t.Errorf("%d pods have an address, %d wait", with, without)
		}
		if cl.waiting() != 2 {
			t.Errorf("%d calls wait, want one for each ENI", cl.waiting())
		}
		pass(30 * time.Second)
		if s := n.last(); s.LastError != "" {
			t.Errorf("status: %+v", s)
		}
		pass(3 * minute)
		p.stop()
		if len(cl.served) != 2 || cl.served[1].Sub(began) > 11*time.Second+2*minute {
			t.Errorf("served at %v, began at %v", cl.served, began)
		}
		for _, e := range w.cloud.Truth() {
			if e.Attachment.DeviceIndex > 0 && !e.Attachment.DeleteOnTermination {
				t.Errorf("%s would outlive its instance", e.ID)
			}
		}
		w.agree()
	})
}

// A call that waits goes with its node, and with what it is for.
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
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				cl := &busy{Cloud: w.cloud}
				p := w.operator(cl)
				n := p.set(t, w.objects[0], settings(0, 8))
				pass(10 * time.Second)
				if cl.waiting() != 1 {
					t.Fatalf("%d calls wait", cl.waiting())
				}
				giveUp(t, p, n)
				pass(time.Second)
				if cl.waiting() != 0 {
					t.Errorf("%d calls wait", cl.waiting())
				}
				pass(5 * minute)
				p.stop()
				if len(cl.served) != 0 {
					t.Errorf("served at %v", cl.served)
				}
			})
		})
	}
}
