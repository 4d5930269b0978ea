package crash

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// addressOwners records who had which address when, so that a duplicate use is detected immediately, even if it does
// not last until the end.
type addressOwners struct {
	violate func(k kind, text string)
	cooling time.Duration // cooling period of addresses

	mu    sync.Mutex // guards all below
	owner map[address]string
	freed map[address]time.Time // start of its last DEL
	holds map[string][]address  // addresses by holder
	adds  int
	dels  int
}

// address is an address in a network: VPCs may overlap.
type address struct {
	network string // empty for the mode's own
	addr    netip.Addr
}

func newAddressOwners(m mode, violate func(kind, string)) *addressOwners {
	l := &addressOwners{violate: violate, cooling: cooling, owner: map[address]string{}, freed: map[address]time.Time{}, holds: map[string][]address{}}
	if m.name == lab.PortMode { // addresses belong to VPCs
		l.cooling = 0
	}
	return l
}

// add adds a pod of a shape and records its addresses.
func (l *addressOwners) add(ctx context.Context, n *node.Node, name string, s shape) error {
	p, err := n.AddPod(ctx, name, s.options)
	if err != nil {
		return err
	}
	addrs, err := s.is(p)
	if err != nil {
		l.violate(other, fmt.Sprintf("pod %s/%s: %v", n.Name, name, err))
	}
	l.own(n.Name+"/"+name, time.Now(), addrs...)
	return nil
}

// own records the addresses of a new pod.
func (l *addressOwners) own(who string, now time.Time, addrs ...address) {
	l.mu.Lock()
	l.adds++
	l.mu.Unlock()
	l.take(who, now, addrs...)
}

// take records additional addresses of a pod.
func (l *addressOwners) take(who string, now time.Time, addrs ...address) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		if former, taken := l.owner[a]; taken {
			l.violate(duplicate, fmt.Sprintf("%s was assigned to %s while %s has it", a.addr, who, former))
		}
		if since, ok := l.freed[a]; ok && a.network == "" && now.Before(since.Add(l.cooling)) {
			l.violate(tooSoon, fmt.Sprintf("%s was assigned to %s %v after its release started, but cools for %v", a.addr, who, now.Sub(since), l.cooling))
		}
		l.owner[a] = who
		l.holds[who] = append(l.holds[who], a)
	}
}

// del removes a pod. Its addresses may be reused as soon as DEL starts.
func (l *addressOwners) del(ctx context.Context, n *node.Node, name string) error {
	if _, err := n.Pod(name); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	l.free(time.Now(), n.Name+"/"+name)
	return n.DelPod(ctx, name)
}

// restart replaces the sandbox of a pod.
func (l *addressOwners) restart(ctx context.Context, n *node.Node, name string) error {
	l.free(time.Now(), n.Name+"/"+name)
	p, err := n.RestartPod(ctx, name)
	if err != nil {
		return err
	}
	addrs, err := shape{}.is(p)
	l.take(n.Name+"/"+name, time.Now(), addrs...)
	return err
}

// force removes a pod whose object was force-deleted before the runtime knows.
func (l *addressOwners) force(ctx context.Context, lab *lab.Lab, n *node.Node, name string) error {
	p, err := n.Pod(name)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	l.free(time.Now(), n.Name+"/"+name)
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.ObjectName}}
	err = poll.Until(ctx, func() error {
		return client.IgnoreNotFound(lab.Kube.Client.Delete(ctx, o.DeepCopy(), client.GracePeriodSeconds(0)))
	})
	if err != nil {
		return fmt.Errorf("force-delete the object of %s: %w", name, err)
	}
	return n.DelPod(ctx, name)
}

// giveLast releases the most recent address of a pod.
func (l *addressOwners) giveLast(who string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.holds[who]
	if len(list) == 0 {
		return
	}
	a := list[len(list)-1]
	delete(l.owner, a)
	l.freed[a], l.holds[who] = now, list[:len(list)-1]
}

// free releases all addresses of a pod.
func (l *addressOwners) free(now time.Time, who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.holds[who] {
		delete(l.owner, a)
		l.freed[a] = now
	}
	delete(l.holds, who)
	l.dels++
}

func TestDuplicateUseIsDetected(t *testing.T) {
	a, b, at := address{addr: netip.MustParseAddr("10.0.0.1")}, address{addr: netip.MustParseAddr("10.0.0.2")}, time.Now()
	var got []kind
	l := newAddressOwners(nodeMode, func(k kind, _ string) { got = append(got, k) })
	l.own("node-1/p1", at, a)
	l.own("node-2/p1", at, b)
	l.own("node-2/p0", at, address{"another", a.addr}, address{"another", b.addr})
	l.own("node-2/p2", at, a)
	l.free(at, "node-2/p1")
	l.own("node-2/p3", at.Add(cooling-1), b)
	l.free(at, "node-2/p2")
	l.own("node-2/p4", at.Add(cooling), a)
	if want := []kind{duplicate, tooSoon}; !slices.Equal(got, want) {
		t.Errorf("violations = %v, want %v", got, want)
	}
}
