package podnics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/vpcport"
)

// What became of ports that no PodNIC named.
const (
	sweptDeleted  = "deleted"
	sweptReturned = "returned"
)

// maxTries is of how many MAC addresses that a port may have got the sweep knows it.
const maxTries = 16

// sightings are ports of a VPC without a PodNIC, by ID, since when.
type sightings map[string]time.Time

// vpcSweep is what the sweep of one VPC keeps from one time to the next.
type vpcSweep struct {
	busy   atomic.Bool // it is under way, and seen is its alone
	seen   sightings   // those that the last listing had
	looked time.Time   // when ports of no PodNIC were looked for last
}

// sweep lists all ports of Berth now and then: to see what others did to those of NICs,
// and, less often, those of which no PodNIC is left, such as that of a call which an operator
// made that did not lead any more. Those of a PodNIC that vanishes while this process watches are looked for at once.
// Each VPC goes at its own pace: one whose provider does not answer holds up no other. How many calls there are at a time,
// providers bound.
func (c *Controller) sweep(ctx context.Context) error {
	var underway sync.WaitGroup
	defer underway.Wait()
	all := map[string]*vpcSweep{}
	next := c.now().Add(c.o.Listing)
	for {
		vanished := false
		select {
		case <-ctx.Done():
			return nil
		case <-c.o.Clock.After(next.Sub(c.now())):
			next = c.now().Add(c.o.Listing)
		case <-c.book.wake:
			vanished = true
			select {
			case <-ctx.Done():
				return nil
			case <-c.o.Clock.After(abandonedPause):
			}
		}
		vpcs, err := c.inUse(ctx)
		if err != nil {
			if vanished {
				c.book.wake.Set()
			}
			continue
		}
		if vanished {
			vpcs = c.book.abandonedIn(vpcs)
		} else {
			c.o.Metrics.keepOnly(vpcs)
			maps.DeleteFunc(all, func(vpc string, s *vpcSweep) bool { return !s.busy.Load() && !slices.Contains(vpcs, vpc) })
		}
		for _, vpc := range vpcs {
			s := all[vpc]
			if s == nil {
				s = &vpcSweep{seen: sightings{}, looked: c.now()}
				all[vpc] = s
			}
			if !s.busy.CompareAndSwap(false, true) {
				if vanished {
					c.book.wake.Set() // the listing that is under way may have begun before
				}
				continue
			}
			underway.Go(func() {
				err := c.sweepVPC(ctx, vpc, s)
				s.busy.Store(false)
				if err == nil || !vanished {
					return
				}
				select {
				case <-ctx.Done():
				case <-c.o.Clock.After(abandonedAgain):
					c.book.wake.Set()
				}
			})
		}
	}
}

// sweepVPC is sweep for one VPC, once.
func (c *Controller) sweepVPC(ctx context.Context, vpc string, s *vpcSweep) error {
	now := c.now()
	collect := now.Sub(s.looked) >= c.o.Orphans
	if err := c.list(ctx, vpc, s.seen, collect); err != nil {
		c.o.Logger.Warn("listing the ports of a VPC, will try again", "vpc", vpc, "error", err)
		return err
	}
	if collect {
		s.looked = now
	}
	return nil
}

// inUse are the VPCs that there are.
func (c *Controller) inUse(ctx context.Context) (names []string, err error) {
	list := &v1alpha1.VPCList{}
	if err := c.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VPCs from the cache: %w", err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// list lists the ports of one VPC, keeps in seen those of no PodNIC, and sees to those of a PodNIC that vanished and,
// if they are to be collected, to the others.
func (c *Controller) list(ctx context.Context, vpc string, seen sightings, collect bool) error {
	opened, err := c.o.Networks.Of(vpc)
	if err != nil {
		return nil // its condition says it
	}
	began := c.now()
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ports, err := opened.Provider.Ports(bounded, vpcport.Filter{NetworkID: opened.Network.ID, Owner: vpcport.Owner})
	defer func() { c.o.Metrics.listed(vpc, err) }()
	if err != nil {
		return err
	}
	vpcs, err := c.vpcUIDs(ctx)
	if err != nil {
		return err
	}
	byUID := map[types.UID][]vpcport.Port{}
	for _, p := range ports {
		if c.inPool(p, vpcs) {
			continue
		}
		if uid, ok := vpcport.DeviceUID(c.o.Cluster, p.Device); ok && p.Mine(c.o.Cluster) {
			byUID[types.UID(uid)] = append(byUID[types.UID(uid)], p)
		}
	}
	for _, key := range c.book.compare(vpc, byUID, began) {
		c.nics.AddObject(key, 0)
	}
	c.o.Metrics.astray(vpc, c.book.astray(byUID))
	if err := c.pool.Listed(bounded, vpc, ports, began); err != nil {
		c.o.Logger.Warn("the ports of the warm pool, will try again", "vpc", vpc, "error", err)
	}
	err = c.orphans(ctx, opened, byUID, c.book.abandonedOf(vpc, byUID, began), seen, collect)
	return err
}

// compare holds what is known of NICs that no call was about since a listing began
// against it, and returns those of which it shows something else.
func (b *book) compare(vpc string, listed map[types.UID][]vpcport.Port, began time.Time) (other []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, n := range b.nics {
		if n.vpc != vpc || n.busy || !n.have.Looked || !n.touched.Before(began) {
			continue
		}
		ports := listed[uid]
		if n.have.Port == nil && len(ports) == 0 || n.have.Port != nil && len(ports) == 1 && same(*n.have.Port, ports[0]) {
			continue
		}
		n.have.Looked, n.looks, n.failed = false, 0, failure{}
		other = append(other, n.key)
	}
	return other
}

// same tells whether a port is as it was, as far as it matters.
func same(a, b vpcport.Port) bool {
	return a.ID == b.ID && a.Device == b.Device && a.Owner == b.Owner && a.Host == b.Host && a.Status == b.Status &&
		a.Binding == b.Binding && a.MAC.String() == b.MAC.String() && slices.Equal(a.Addresses, b.Addresses) &&
		slices.Equal(slices.Sorted(slices.Values(a.Groups)), slices.Sorted(slices.Values(b.Groups)))
}

// orphans sees to the ports that no PodNIC has, and are due, and whose PodNIC the API server does not have either.
func (c *Controller) orphans(ctx context.Context, opened Opened, byUID map[types.UID][]vpcport.Port, gone map[types.UID]time.Time, seen sightings, collect bool) error {
	now, orphans, there := c.now(), map[types.UID][]vpcport.Port{}, map[string]bool{}
	for uid, ports := range byUID {
		if c.book.has(uid) {
			continue
		}
		orphans[uid] = ports
		for _, p := range ports {
			if there[p.ID] = true; seen[p.ID].IsZero() {
				seen[p.ID] = now
			}
		}
	}
	maps.DeleteFunc(seen, func(port string, _ time.Time) bool { return !there[port] })
	due := dueOrphans(orphans, gone, seen, collect, now, opened.Provider.Traits().Cooling, c.o.OrphanAge)
	if len(due) == 0 {
		return nil
	}
	list := &v1alpha1.PodNICList{}
	if err := c.live.List(ctx, list); err != nil {
		return fmt.Errorf("list PodNICs: %w", err)
	}
	recorded := map[string]bool{} // also under the mark of a VPC object that is no more
	for i := range list.Items {
		delete(due, list.Items[i].UID)
		recorded[list.Items[i].Status.PortID] = true
	}
	for uid, ports := range due {
		for _, p := range ports {
			if recorded[p.ID] {
				continue
			}
			if err := c.sweepPort(ctx, opened.Provider, string(uid), p); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepPort deletes a port that Berth made; from one that a user made it takes Berth's
// marks.
func (c *Controller) sweepPort(ctx context.Context, provider vpcport.Provider, uid string, p vpcport.Port) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if madeByBerth(c.o.Cluster, uid, p) {
		if err := provider.Delete(bounded, p.ID); err != nil {
			return err
		}
		c.o.Logger.Warn("port deleted of which no PodNIC is left", "port", p.ID, "name", p.Name)
		c.o.Metrics.swept.WithLabelValues(sweptDeleted).Inc()
		return nil
	}
	none := ""
	if _, err := provider.Update(bounded, p.ID, p.Revision, vpcport.Change{Device: &none, Owner: &none, Host: &none}); err != nil {
		return err
	}
	c.o.Logger.Warn("a user's port given back of which no PodNIC is left", "port", p.ID, "name", p.Name)
	c.o.Metrics.swept.WithLabelValues(sweptReturned).Inc()
	return nil
}

// madeByBerth tells whether Berth made a port that has its marks, which a user's has too
// while a NIC uses it: by its MAC address or its name, of which either has the UID of the
// PodNIC in it; or by the name of those that were made before a NIC needed them. A user's port is older
// than that.
func madeByBerth(cluster, uid string, p vpcport.Port) bool {
	for try := range byte(maxTries) {
		if p.MAC.String() == vpcport.DerivedMAC(cluster, uid, try).String() {
			return true
		}
	}
	return strings.HasPrefix(p.Name, portPrefix(uid)) || strings.HasPrefix(p.Name, warm.NamePrefix)
}

// has tells whether a NIC is known.
func (b *book) has(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nics[uid] != nil || b.fresh[uid]
}
