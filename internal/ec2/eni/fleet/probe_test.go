package fleet

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
)

// A permission that was missing and has been granted is noticed when the next pod waits, and not by
// constant retries.
func TestWaiterProbes(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		n := w.operator(w.cloud).set(t, w.objects[0], settings(0, 1))
		pass(20 * time.Second)
		before := w.cloud.Front.Count("CreateENI")
		for range 100 { // pods that come to wait within 10 s
			n.run(1)
			pass(100 * time.Millisecond)
		}
		if got := w.cloud.Front.Count("CreateENI") - before; got < 1 || got > 2 {
			t.Errorf("%d creates for a hundred pods in 10 s, want one or two", got)
		}
		pass(11 * time.Second)
		w.cloud.Front.ClearFaults()
		n.run(1)
		pass(5 * time.Second)
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
