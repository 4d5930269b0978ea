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

// addressOwners records who had which address when, so that a double use is seen at once, not
// only if it lasts until the end.
type addressOwners struct {
	violate func(k kind, text string)
	cooling time.Duration // of addresses

	mu    sync.Mutex // guards all below
	owner map[address]string
	freed map[address]time.Time // when its last DEL began
	holds map[string][]address  // by who holds them
	adds  int
	dels  int
}

// address is one of a network: those of VPCs may overlap.
type address struct {
	network string // empty: of the mode
	addr    netip.Addr
}

func newAddressOwners(m mode, violate func(kind, string)) *addressOwners {
	l := &addressOwners{violate: violate, cooling: cooling, owner: map[address]string{}, freed: map[address]time.Time{}, holds: map[string][]address{}}
	if m.name == lab.PortMode { // where addresses are the VPC's
		l.cooling = 0
	}
	return l
}

// add makes a pod of a shape and records its addresses.
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

// take records further addresses of a pod.
func (l *addressOwners) take(who string, now time.Time, addrs ...address) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		if former, taken := l.owner[a]; taken {
			l.violate(duplicate, fmt.Sprintf("%s was given to %s while %s has it", a.addr, who, former))
		}
		if since, ok := l.freed[a]; ok && a.network == "" && now.Before(since.Add(l.cooling)) {
			l.violate(tooSoon, fmt.Sprintf("%s was given to %s %v after its release began, it cools for %v", a.addr, who, now.Sub(since), l.cooling))
		}
		l.owner[a] = who
		l.holds[who] = append(l.holds[who], a)
	}
}

// del removes a pod. Its addresses may be reused as soon as DEL begins.
func (l *addressOwners) del(ctx context.Context, n *node.Node, name string) error {
	if _, err := n.Pod(name); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	l.free(time.Now(), n.Name+"/"+name)
	return n.DelPod(ctx, name)
}

// force removes a pod whose object was deleted by force before its runtime knows.
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
		return fmt.Errorf("delete the object of %s by force: %w", name, err)
	}
	return n.DelPod(ctx, name)
}

// giveLast releases the address that a pod got last.
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

func TestDoubleUseIsSeen(t *testing.T) {
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
		t.Errorf("it saw %v, want %v", got, want)
	}
}
