package crash

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/node"
)

// ledger is the test's own book of who had which address when, so that a
// double use is seen at once and not only if it lasts until the end.
type ledger struct {
	violate func(k kind, text string) // is told
	cooling time.Duration             // of addresses

	mu    sync.Mutex // guards all below
	owner map[netip.Addr]string
	freed map[netip.Addr]time.Time // when its last DEL began
	adds  int
	dels  int
}

func newLedger(m mode, violate func(kind, string)) *ledger {
	l := &ledger{violate: violate, cooling: cooling, owner: map[netip.Addr]string{}, freed: map[netip.Addr]time.Time{}}
	if m.name == lab.PortMode { // where addresses are the VPC's
		l.cooling = 0
	}
	return l
}

// add makes a pod and books its address.
func (l *ledger) add(ctx context.Context, n *node.Node, name string) error {
	p, err := n.AddPod(ctx, name, node.PodOptions{})
	if err != nil {
		return err
	}
	l.book(n.Name+"/"+name, time.Now(), p.Addrs)
	return nil
}

// book has somebody own addresses from now on.
func (l *ledger) book(who string, now time.Time, addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adds++
	for _, a := range addrs {
		if former, taken := l.owner[a]; taken {
			l.violate(duplicate, fmt.Sprintf("%s was given to %s while %s has it", a, who, former))
		}
		if since, ok := l.freed[a]; ok && now.Before(since.Add(l.cooling)) {
			l.violate(tooSoon, fmt.Sprintf("%s was given to %s %v after its release began, it cools for %v", a, who, now.Sub(since), l.cooling))
		}
		l.owner[a] = who
	}
}

// del removes a pod. Its address is free from the moment that DEL begins.
func (l *ledger) del(ctx context.Context, n *node.Node, name string) error {
	p, err := n.Pod(name)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	l.free(time.Now(), p.Addrs)
	return n.DelPod(ctx, name)
}

// free ends the ownership of addresses.
func (l *ledger) free(now time.Time, addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		delete(l.owner, a)
		l.freed[a] = now
	}
	l.dels++
}

func TestLedger(t *testing.T) {
	a, b, at := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), time.Now()
	var got []kind
	l := newLedger(nodeMode, func(k kind, _ string) { got = append(got, k) })
	l.book("node-1/p1", at, []netip.Addr{a})
	l.book("node-2/p1", at, []netip.Addr{b})
	l.book("node-2/p2", at, []netip.Addr{a})
	l.free(at, []netip.Addr{b})
	l.book("node-2/p3", at.Add(cooling-1), []netip.Addr{b})
	l.free(at, []netip.Addr{a})
	l.book("node-2/p4", at.Add(cooling), []netip.Addr{a})
	if want := []kind{duplicate, tooSoon}; !slices.Equal(got, want) {
		t.Errorf("the ledger saw %v, want %v", got, want)
	}
}
