package crash

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/test/harness"
)

// TestTwoActiveOperators runs two operators for the same nodes without leader election, while pods are added and
// removed. One of them is halted repeatedly and continues with its old state. No address is in two pods, nor
// available on two nodes unless one has released it, no block is cut twice, no request is lost, and at the end nodes
// hold only what the policy keeps.
func TestTwoActiveOperators(t *testing.T) {
	t.Parallel()
	smallBlocks := poolMode // two addresses per block, too few for a quarter to be warm
	smallBlocks.options.Pools = []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 1, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/25", IPv6: "fd02::/121"})}
	smallBlocks.pods, smallBlocks.empty = 20, blocks(0)
	for i, m := range []mode{operatorMode, smallBlocks} {
		t.Run(string(m.name), func(t *testing.T) {
			t.Parallel()
			harness.Rotate(t, [][]int{{0, 4}, {3, 7}}[i]...)
			o := m.lab(3, 2)
			o.OperatorArgs = append(o.OperatorArgs, "--leader-elect=false")
			l := harness.Raise(t, o)
			r := &round{place: place{mode: m.name, seed: 7}, mode: m, tally: newTally(m.name), soak: t.Context()}
			ctx := harness.Deadline(t, 2*patience)
			w, err := l.Kube.Client.Watch(ctx, &v1alpha1.NodeNetworkList{})
			harness.OK(t, err)
			var watching sync.WaitGroup
			watching.Go(func() { availableOnce(t, w) })

			owners := newAddressOwners(m, r.violate)
			done := make(chan struct{})
			go func() {
				defer close(done)
				var workers sync.WaitGroup
				for i, n := range l.Nodes() {
					w := &worker{
						round: r, node: n, owners: owners, atOnce: m.pods, late: time.Now().Add(patience),
						dice: rand.New(rand.NewPCG(r.seed, uint64(i+1))),
					}
					workers.Go(func() { w.run(ctx, 8*m.pods) })
				}
				workers.Wait()
			}()
			haltInTurn(t, l.Operators(), done)
			<-done
			r.rest(ctx, l, owners, nil, nil)
			w.Stop()
			watching.Wait()
			for _, text := range r.violations() {
				t.Error(text)
			}
			harness.StartedOnce(t, harness.Programs(l)...)
			t.Logf("%d pods", owners.adds)
		})
	}
}

// haltInTurn halts the operators alternately until done is closed.
func haltInTurn(t *testing.T, operators []*lab.Operator, done <-chan struct{}) {
	for i := 0; ; i++ {
		o := operators[i%len(operators)]
		harness.OK(t, o.Pause())
		over := closedWithin(done, 1500*time.Millisecond)
		harness.OK(t, o.Resume())
		if over || closedWithin(done, 500*time.Millisecond) {
			return
		}
	}
}

// closedWithin reports whether done is closed within a time.
func closedWithin(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// availableOnce checks every version of every NodeNetwork for addresses that two nodes may assign to pods.
func availableOnce(t *testing.T, w watch.Interface) {
	nodes := map[string]*v1alpha1.NodeNetwork{}
	for e := range w.ResultChan() {
		o, ok := e.Object.(*v1alpha1.NodeNetwork)
		if !ok {
			continue
		}
		nodes[o.Name] = o
		for a := range o.Spec.IPAM.Available {
			for _, other := range nodes {
				if other.Name != o.Name && serves(o, a) && serves(other, a) {
					t.Errorf("%s is available on both %s and %s", a, o.Name, other.Name)
				}
			}
		}
	}
}

// serves reports whether a node may assign an address to a pod: it is available, and not released.
func serves(o *v1alpha1.NodeNetwork, a string) bool {
	_, ok := o.Spec.IPAM.Available[a]
	return ok && !(slices.Contains(o.Spec.IPAM.Releasing, a) && slices.Contains(o.Status.IPAM.Released, a))
}
