package fleet

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// account is a cloud with an ENI that belongs to no node of the test.
type account struct{ *cloudfake.Cloud }

const ofOthers = "eni-of-others"

func (a account) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	if id == ofOthers {
		return nil, nil
	}
	return a.Cloud.AssignAddresses(ctx, id, n)
}

// A move of addresses to another ENI waits behind what other nodes need. If pods come to wait
// meanwhile, the move is recalled, the pods get addresses with their own priority, and the move is made
// once the node has been at rest again.
func TestMoveIsGivenUpForPods(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := pace.Cloud(account{w.cloud}, pace.Options{Ceilings: map[string]pace.Limit{pace.Assign.Action: {Rate: 0.1, Burst: 100}}})
		p := w.operator(ec2)
		n := p.set(t, w.objects[0], eni.Settings{InstanceType: "m5.xlarge", Policy: ipam.Policy{WarmIP: 1, MinimumIP: 3}})
		n.runFor(16, minute)
		n.endOn(0)
		n.runFor(0, 5*minute)
		layout := func() (primary, second int) {
			for _, e := range w.cloud.State.Truth() {
				if e.Attachment.DeviceIndex == 0 {
					primary = len(e.Addresses)
				} else {
					second = len(e.Addresses)
				}
			}
			return primary, second
		}

		ctx, quiet := context.WithCancel(cloud.WithPriority(t.Context(), 2))
		var others sync.WaitGroup
		for range 20 { // more than the burst lets through, all of them worse off
			others.Go(func() {
				for ctx.Err() == nil {
					_, _ = ec2.AssignAddresses(ctx, ofOthers, cloud.Amount{Addresses: 1})
				}
			})
		}
		n.endOn(1)
		n.runFor(0, 80*time.Second)
		before := w.cloud.Front.Count("AssignAddresses")
		if primary, second := layout(); primary != 1 || second != 2 {
			t.Fatalf("%d and %d addresses, want 1 and 2: the move waits", primary, second)
		}
		n.runFor(8, 25*time.Second) // at one call in ten seconds
		n.wantPods(t, 8)
		check.Equal(t, w.cloud.Front.Count("AssignAddresses")-before, 1, "calls")
		check.Equal(t, n.last().LastError, "", "status")
		quiet()
		others.Wait()
		n.endOn(0)
		n.endOn(1)
		n.runFor(0, 10*minute)
		if primary, second := layout(); primary != 3 || second != 0 {
			t.Errorf("at rest: %d and %d addresses", primary, second)
		}
	})
}

// endOn ends the pods on the ENI at a device index.
func (o *object) endOn(index int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.inv.ENIs {
		for _, a := range e.Addresses {
			if e.DeviceIndex == index {
				delete(o.used, a)
			}
		}
	}
}

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
		check.Equal(t, n.last().LastError, "", "status")
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
		t.Run(name, inBubble(1, func(t *testing.T, w *world) {
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
			check.Equal(t, len(cl.served), 0, "served at %v", cl.served)
		}))
	}
}

// A permission that was missing and has been granted is noticed when the next pod waits, and not by
// constant retries.
func TestWaiterProbes(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		n := w.operator(w.cloud).set(t, w.objects[0], settings(0, 1))
		pass(20 * time.Second)
		before := w.cloud.Front.Count("CreateENI")
		for range 100 { // pods that come to wait within 10 s
			n.runFor(1, 100*time.Millisecond)
		}
		if got := w.cloud.Front.Count("CreateENI") - before; got < 1 || got > 2 {
			t.Errorf("%d creates for a hundred pods in 10 s, want one or two", got)
		}
		pass(11 * time.Second)
		w.cloud.Front.ClearFaults()
		n.runFor(1, 5*time.Second)
		if with, _ := n.pods(); with == 0 {
			t.Errorf("no pod has an address 5 s after the permission was given and a pod came: %+v", n.last())
		}
	})
}

// While EC2 is away and pods wait on many nodes, one node at a time probes for all, and all go on once
// EC2 answers.
func TestFleetProbesOneAtATime(t *testing.T) {
	const nodes, away = 60, 60 * time.Second
	bubble(t, nodes, func(t *testing.T, w *world) {
		w.cloud.Front.SetLatency("", 50*time.Millisecond)
		p := w.operator(w.cloud)
		p.setAll(settings(0, 1))
		pass(20 * time.Second)
		w.cloud.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
		for _, n := range p.writers {
			n.run(2)
		}
		served := func() (n int) {
			for _, o := range w.objects {
				if _, waiting := o.pods(); waiting == 0 {
					n++
				}
			}
			return n
		}
		pass(away / 2) // the nodes' own tries are far apart now
		before := len(w.cloud.Front.Calls())
		pass(away / 2)
		calls := len(w.cloud.Front.Calls()) - before
		t.Logf("%d calls of %d nodes in %v", calls, nodes, away/2)
		if most := 2*nodes + 30; calls > most {
			t.Errorf("%d calls in %v of an outage, want at most two a node and one a second: %d", calls, away/2, most)
		}
		w.cloud.Front.ClearFaults()
		var first, all time.Duration
		for back := time.Now(); all == 0 && time.Since(back) < time.Minute; pass(100 * time.Millisecond) {
			n := served()
			if n > 0 && first == 0 {
				first = time.Since(back)
			}
			if n == nodes {
				all = time.Since(back)
			}
		}
		t.Logf("first node served after %v, all after %v", first, all)
		if all == 0 || all > 10*time.Second {
			t.Errorf("all nodes served %v after EC2 was back (0: never), want within 10 s", all)
		}
	})
}
