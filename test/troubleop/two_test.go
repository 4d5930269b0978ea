package troubleop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestTwoOperators has two operators work for the same nodes, neither of which
// knows of the other, while pods come and go, one of them is halted now and then,
// and goes on with what it knew before. No address is ever in two pods, nor
// available on two nodes but where one has given it up already; each pod's is
// assigned to its node; and at the end every node is back to its one warm address.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	c := raise(t, "", lab.Options{Nodes: 3, InstanceType: "t3.small", OperatorCount: 2, OperatorArgs: []string{"--leader-elect=false"}})
	book := newBook()
	ctx := harness.Deadline(t, 4*patience)
	w, err := c.Kube.Client.Watch(ctx, &v1alpha1.NodeNetworkList{})
	harness.OK(t, err)
	var watching sync.WaitGroup
	watching.Go(func() { book.watch(t, w) })

	var churn sync.WaitGroup
	for i, n := range c.Nodes() {
		churn.Go(func() { c.churn(ctx, t, book, n, rand.New(rand.NewPCG(7, uint64(i))), 30) })
	}
	done := make(chan struct{})
	go func() {
		churn.Wait()
		close(done)
	}()
	for i := 0; ; i++ {
		o := c.Operators()[i%2]
		harness.OK(t, o.Pause())
		over := waits(done, 1500*time.Millisecond)
		harness.OK(t, o.Resume())
		if over || waits(done, 500*time.Millisecond) {
			break
		}
	}
	churn.Wait()
	harness.Eventually(t, patience, "every node is back to its one warm address", func() error {
		var errs []error
		for _, n := range c.Nodes() {
			addresses, enis := 0, c.enis(n)
			for _, e := range enis {
				addresses += len(e.Secondary)
			}
			if len(enis) != 2 || addresses != 1 {
				errs = append(errs, fmt.Errorf("%s has %d ENIs with %d addresses", n.Name, len(enis), addresses))
			}
		}
		return errors.Join(errs...)
	})
	w.Stop()
	watching.Wait()
	harness.Settle(t, c.Lab)
	t.Logf("%d pods, %d states of NodeNetworks", book.pods, book.states)
	for _, o := range c.Operators() {
		if o.Starts() != 1 {
			t.Errorf("%s was started %d times", o.Name, o.Starts())
		}
	}
}

// waits tells whether done was closed within a time. The time is the trouble's
// pace, not a wait for anything.
func waits(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// churn makes and removes up to six pods at random, and all in the end.
func (c *cluster) churn(ctx context.Context, t *testing.T, b *book, n *node.Node, dice *rand.Rand, rounds int) {
	var have []string
	drop := func(i int) {
		p, err := n.Pod(have[i])
		if err == nil {
			b.end(p)
			err = n.DelPod(ctx, have[i])
		}
		if err != nil {
			t.Error(err)
		}
		have = slices.Delete(have, i, i+1)
	}
	for i := range rounds {
		if len(have) == 6 || len(have) > 0 && dice.IntN(3) == 0 {
			drop(dice.IntN(len(have)))
			continue
		}
		name := fmt.Sprintf("p%d", i)
		p, err := n.AddPod(ctx, name, node.PodOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		have = append(have, name)
		b.begin(t, p)
		if !slices.ContainsFunc(c.enis(n), func(e vpc.ENI) bool { return slices.Contains(e.Secondary, p.Addr()) }) {
			t.Errorf("pod %s of %s has %s, which EC2 has not assigned to its node", name, n.Name, p.Addr())
		}
	}
	for len(have) > 0 {
		drop(0)
	}
}

// book is the test's own record of who has which address.
type book struct {
	mu     sync.Mutex // guards all below
	owner  map[netip.Addr]string
	pods   int
	nodes  map[string]*v1alpha1.NodeNetwork
	states int
}

func newBook() *book {
	return &book{owner: map[netip.Addr]string{}, nodes: map[string]*v1alpha1.NodeNetwork{}}
}

func (b *book) begin(t *testing.T, p *node.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods++
	who := p.Node + "/" + p.Name
	if other := b.owner[p.Addr()]; other != "" {
		t.Errorf("%s was given to %s while %s has it", p.Addr(), who, other)
	}
	b.owner[p.Addr()] = who
}

func (b *book) end(p *node.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.owner, p.Addr())
}

// watch looks at every state of every NodeNetwork, in the order in which they
// were written.
func (b *book) watch(t *testing.T, w watch.Interface) {
	for e := range w.ResultChan() {
		o, ok := e.Object.(*v1alpha1.NodeNetwork)
		if !ok {
			continue
		}
		b.mu.Lock()
		b.states++
		b.nodes[o.Name] = o
		for a := range o.Spec.IPAM.Available {
			for _, other := range b.nodes {
				if other.Name != o.Name && serves(o, a) && serves(other, a) {
					t.Errorf("%s is available on %s and on %s", a, o.Name, other.Name)
				}
			}
		}
		b.mu.Unlock()
	}
}

// serves tells whether a node may give an address to a pod: it is available, and
// was not withdrawn to go back.
func serves(o *v1alpha1.NodeNetwork, a string) bool {
	_, ok := o.Spec.IPAM.Available[a]
	return ok && !(slices.Contains(o.Spec.IPAM.Releasing, a) && slices.Contains(o.Status.IPAM.Released, a))
}
