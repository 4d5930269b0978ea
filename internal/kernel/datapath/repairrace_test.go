package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

// Pods come and go while Repair runs on lists that are out of date by the time
// it acts: none may be taken from under its owner, none brought back.
func TestRepairWhilePodsComeAndGo(t *testing.T) {
	v := newVPC(t)
	var mu sync.Mutex
	records := map[string]Pod{} // like the daemon's: from before the ADD to after the DEL
	record := func(p Pod, keep bool) {
		mu.Lock()
		defer mu.Unlock()
		if keep {
			records[p.HostIfName] = p
		} else {
			delete(records, p.HostIfName)
		}
	}
	var pods []*pod
	addr := netip.MustParseAddr("10.0.64.1")
	for range 8 {
		pods = append(pods, v.sandbox(addr.String()))
		addr = addr.Next()
	}
	var owners sync.WaitGroup
	for _, p := range pods {
		owners.Go(func() {
			for range 15 {
				if err := v.cycle(p, record); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop, repairing := make(chan struct{}), sync.WaitGroup{}
	repairing.Go(func() {
		for {
			mu.Lock()
			w := v.wanted()
			w.Pods = slices.Collect(maps.Values(records))
			mu.Unlock()
			if _, err := v.node.Repair(ctx, w); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	owners.Wait()
	close(stop)
	repairing.Wait()
	v.repair(v.wanted())
	v.has(0, 0)
}

// cycle is one life of a pod.
func (v *vpc) cycle(p *pod, record func(Pod, bool)) error {
	record(p.want, true)
	if _, err := v.node.AddPod(ctx, p.want); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if err := v.node.CheckPod(ctx, p.want); err != nil {
		return fmt.Errorf("after add: %w", err)
	}
	if err := v.node.DetachPod(ctx, p.want.HostIfName, p.want.Addrs()); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if err := v.node.ReapLinks(ctx, []string{p.want.HostIfName}); err != nil {
		return fmt.Errorf("reap: %w", err)
	}
	if _, err := v.host.nl.LinkByName(p.want.HostIfName); err == nil {
		return fmt.Errorf("%s came back", p.want.HostIfName)
	}
	record(p.want, false)
	return nil
}
