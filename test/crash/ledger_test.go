package crash

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpclab/node"
)

// ledger is the test's own book of who had which address when, so that a
// double use is seen at once and not only if it lasts until the end.
type ledger struct {
	mu    sync.Mutex // guards all below
	owner map[netip.Addr]string
	freed map[netip.Addr]time.Time // when its last DEL began
	adds  int
	dels  int
}

func newLedger() *ledger {
	return &ledger{owner: map[netip.Addr]string{}, freed: map[netip.Addr]time.Time{}}
}

// add makes a pod and books its address.
func (l *ledger) add(ctx context.Context, t *testing.T, n *node.Node, name string) error {
	p, err := n.AddPod(ctx, name, node.PodOptions{})
	if err != nil {
		return err
	}
	now, who := time.Now(), n.Name+"/"+name
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adds++
	for _, a := range p.Addrs {
		if other, taken := l.owner[a]; taken {
			t.Errorf("%s was given to %s while %s has it", a, who, other)
		}
		if since, ok := l.freed[a]; ok && now.Before(since.Add(cooling)) {
			t.Errorf("%s was given to %s %v after its release began, it cools for %v", a, who, now.Sub(since), cooling)
		}
		l.owner[a] = who
	}
	return nil
}

// del removes a pod. Its address is free from the moment that DEL begins.
func (l *ledger) del(ctx context.Context, n *node.Node, name string) error {
	p, err := n.Pod(name)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	l.mu.Lock()
	for _, a := range p.Addrs {
		delete(l.owner, a)
		l.freed[a] = time.Now()
	}
	l.dels++
	l.mu.Unlock()
	return n.DelPod(ctx, name)
}
