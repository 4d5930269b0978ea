package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/check"
)

// An old leader goes on beside a new one, without any election. Once pods stop starting, nothing is
// created or deleted any more, and nothing is left over.
func TestTwoFleetsForTheSameNodesConverge(t *testing.T) {
	bubble(t, 8, func(t *testing.T, w *world) {
		w.cloud.Front.SetLatency("", 80*time.Millisecond)
		w.cloud.State.SetAttachTime(2 * time.Second)
		one, two := w.operator(w.cloud), w.operator(w.cloud)
		s := settings(0, 8)
		s.Trunk = true
		for _, o := range w.objects {
			one.set(t, o, s)
			two.set(t, o, s)
		}
		for i := range 40 {
			o := w.objects[i%len(w.objects)]
			one.writers[o.name].run(1)
			two.Kick(o.name)
			pass(300 * time.Millisecond)
		}
		pass(15 * minute)
		changes := func() int {
			return w.cloud.Front.Count("CreateENI", "AttachENI", "DetachENI", "DeleteENI", "AssignAddresses", "UnassignAddresses")
		}
		before := changes()
		pass(15 * minute)
		check.Equal(t, changes()-before, 0, "changes in a quarter of an hour in which nothing happened")
		for _, o := range w.objects {
			check.Equal(t, len(w.trunks(o.instance)), 1, "%s: trunks", o.name)
			if o.available() < 8+len(o.used) {
				t.Errorf("%s has %d addresses, %d used", o.name, o.available(), len(o.used))
			}
		}
	})
}

// An ENI that another operator just created is left for it to attach; one that no operator attached is
// deleted.
func TestYoungENIOfAnotherIsSpared(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		p.set(t, w.objects[0], settings(0, 8))
		pass(10 * time.Second)
		made := w.leftBehind("test", "i-000", time.Now())
		there := func() bool {
			return slices.ContainsFunc(w.cloud.State.Truth(), func(e cloud.ENI) bool { return e.ID == made.ID })
		}
		check.OK(t, p.observatory.list(t.Context()))
		p.spread(time.Second)
		pass(10 * time.Second)
		if !there() {
			t.Error("deleted at once")
		}
		pass(5 * minute)
		if there() {
			t.Error("never deleted")
		}
	})
}

// seeds returns the seeds of TestSimulation: BERTH_SIM_SEED, or some.
func seeds(t *testing.T) []uint64 {
	if s := os.Getenv("BERTH_SIM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("BERTH_SIM_SEED: %v", err)
		}
		return []uint64{n}
	}
	out := []uint64{1, 2, 3, 4, 5, 6}
	for range 10 {
		out = append(out, rand.Uint64())
	}
	return out
}

// Nodes join and go, pods start and end, calls are throttled, replies are lost, and leaders change at
// random moments; at the end the cloud has exactly what is published.
func TestSimulation(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint(seed), inBubble(0, func(t *testing.T, w *world) { simulate(t, w, rand.New(rand.NewPCG(seed, 0))) }))
	}
}

func simulate(t *testing.T, w *world, r *rand.Rand) {
	w.cloud.Front.SetLatency("", time.Duration(r.IntN(300))*time.Millisecond)
	w.cloud.State.SetAttachTime(time.Duration(r.IntN(4)) * time.Second)
	w.cloud.State.SetLag(time.Duration(r.IntN(3)) * time.Second)
	p := w.operator(w.cloud)
	next := 0
	trunks := map[string]bool{} // nodes that are to have one
	with := func(o *object, minimum int) eni.Settings {
		s := settings(minimum, 4)
		s.Trunk = trunks[o.name]
		return s
	}
	join := func() {
		o := w.add(next)
		trunks[o.name] = r.IntN(2) == 0
		p.set(t, o, with(o, 0))
		next++
	}
	anyObject := func() *object { return w.objects[r.IntN(len(w.objects))] }
	for range 5 {
		join()
	}
	ops := []string{"CreateENI", "AttachENI", "AssignAddresses", "UnassignAddresses", "DetachENI", "DeleteENI", "ENIs", "Subnets", "SetDeleteOnTermination"}
	for range 300 {
		pass(time.Duration(r.IntN(3000)) * time.Millisecond)
		switch n := r.IntN(100); {
		case n < 5 && len(w.objects) < 15:
			join()
		case n < 40:
			o := anyObject()
			if with, _ := o.pods(); with < 20 {
				o.start()
			}
			p.Kick(o.name)
		case n < 65:
			o := anyObject()
			o.end()
			p.Kick(o.name)
		case n < 75:
			class := []cloud.Class{cloud.Throttled, cloud.Throttled, cloud.Conflict, cloud.LimitReached, cloud.SubnetFull}[r.IntN(5)]
			w.cloud.Front.Inject(cloudfake.Fault{Op: ops[r.IntN(len(ops))], Times: 1 + r.IntN(3), Err: cloudfake.Err(class, "")})
		case n < 85:
			w.cloud.Front.Inject(cloudfake.Fault{Op: ops[r.IntN(len(ops))], Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		case n < 88 && len(w.objects) > 3:
			i := r.IntN(len(w.objects))
			o := w.objects[i]
			w.objects = append(w.objects[:i], w.objects[i+1:]...)
			w.cloud.State.Terminate(o.instance)
			p.Remove(o.name)
		case n < 91:
			p.stop()
			p = w.operator(w.cloud)
			for _, o := range w.objects {
				p.set(t, o, with(o, 0))
			}
		case n < 94:
			o := anyObject()
			trunks[o.name] = r.IntN(2) == 0
			p.writers[o.name].configure(t, with(o, r.IntN(10)))
		case n < 96:
			p.Invalidate(anyObject().name)
		}
	}
	w.cloud.Front.ClearFaults()
	pass(60 * minute)
	p.stop()
	check.NoError(t, p.shared.Catalog.Subnets.Refresh(t.Context(), cloud.SubnetFilter{}, time.Now()))
	truth, err := w.cloud.Subnets(t.Context(), cloud.SubnetFilter{})
	if err != nil {
		t.Error(err)
	}
	for _, sn := range p.Subnets() {
		for _, is := range truth {
			if is.ID == sn.ID && is.Free != sn.Free {
				t.Errorf("%d addresses of %s are set apart for nobody", is.Free-sn.Free, sn.ID)
			}
		}
	}
	for _, o := range w.objects {
		// With 20 pods at most there is room for it.
		if n := len(w.trunks(o.instance)); (n == 1) != trunks[o.name] || n > 1 {
			t.Errorf("%s: %d trunks, wanted is %v", o.name, n, trunks[o.name])
		}
		if with, waiting := o.pods(); waiting > 0 || o.available() < 4+with {
			t.Errorf("%s: %d pods wait, %d addresses, %d used", o.name, waiting, o.available(), with)
		}
	}
}

// A process is stopped between recording a release and its call, and goes on after another process took
// over the node, where many pods wait. The other process has asked the cloud itself by then, and no pod
// got the released addresses.
func TestCallAfterAnotherTookOver(t *testing.T) {
	for name, pods := range map[string]int{"addresses": 6, "an ENI": 20} { // an m5.xlarge's ENI has room for 14
		t.Run(name, inBubble(1, func(t *testing.T, w *world) {
			goOn := make(chan struct{})
			o := w.operator(&api{Cloud: w.cloud, taking: goOn}).set(t, w.objects[0], settings(0, 8))
			o.runFor(pods, 30*time.Second)
			for range pods {
				o.end()
			}
			o.runFor(0, 2*minute)
			leaving, enis := o.leaves()
			if len(leaving)+len(enis) == 0 || w.cloud.Front.Count("UnassignAddresses", "DetachENI") != 0 {
				t.Fatalf("leaving: %v, %v; %d calls", leaving, enis, w.cloud.Front.Count("UnassignAddresses", "DetachENI"))
			}
			before := w.attachments()
			two := w.operator(w.cloud).set(t, o.object, settings(0, 8))
			pass(10 * time.Second)
			two.run(25)
			for range 5 {
				pass(minute)
				for a := range leaving {
					if o.has(a) {
						t.Errorf("a pod has %v, which is on its way out", a)
					}
				}
				now := w.attachments()
				for _, e := range o.inventory().ENIs {
					if enis[e.ID] && now[e.ID] == before[e.ID] {
						t.Errorf("%s is published, which is on its way out", e.ID)
					}
				}
			}
			if w.cloud.Front.Count("UnassignAddresses", "DetachENI") == 0 {
				t.Error("the other did not go on")
			}
			close(goOn)
			pass(15 * minute)
			if _, waiting := o.pods(); waiting > 0 {
				t.Errorf("%d pods wait", waiting)
			}
		}))
	}
}

// attachments returns the attachments of all ENIs.
func (w *world) attachments() map[string]string {
	out := map[string]string{}
	for _, e := range w.cloud.State.Truth() {
		if e.Attachment != nil {
			out[e.ID] = e.Attachment.ID
		}
	}
	return out
}

// leaves returns the releases that are recorded.
func (o *object) leaves() (map[netip.Addr]string, map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.committed), maps.Clone(o.detaching)
}

// One collector for the whole fleet deletes the orphans of its cluster, and of no other.
func TestOrphansAreCollected(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		long := time.Now().Add(-24 * time.Hour) // as anybody may write
		w.leftBehind("test", "i-gone", long)
		w.leftBehind("other", "i-gone", long)
		p := w.operator(w.cloud)
		p.set(t, w.objects[0], settings(0, 8))
		left := func() (n int) {
			for _, e := range w.cloud.State.Truth() {
				if e.Attachment == nil {
					n++
				}
			}
			return n
		}
		pass(14 * minute)
		check.Equal(t, left(), 2, "detached ENIs before they are old enough")
		pass(20 * minute)
		check.Equal(t, left(), 1, "detached ENIs")
		check.Equal(t, w.cloud.Front.Count("Instances"), 2, "calls for instances")
	})
}
