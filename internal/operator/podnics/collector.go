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

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// vanishedPause is how long the collector waits for further vanished PodNICs, so that one listing serves
	// many, and vanishedAgain how long it waits after such a listing failed.
	vanishedPause = 2 * time.Second
	vanishedAgain = 15 * time.Second
)

// Outcomes for ports without a PodNIC, as metric labels.
const (
	sweptDeleted  = "deleted"
	sweptReturned = "returned"
)

// collector periodically lists all ports of Berth in each VPC, and finds those that other clients of the provider changed.
// It deletes orphans, which are ports without a PodNIC: immediately if the PodNIC vanished while this process was watching,
// otherwise after they have been seen for some time. They may come, for example, from a call of an operator that had lost
// its lease.
type collector struct {
	o      Options
	api    *kubeAPI
	states *nicStates
	pool   *warm.Pool
	nics   *queue.Queue // of the nicReconciler
}

// sightings record when ports of a VPC without a PodNIC were first seen, by ID.
type sightings map[string]time.Time

// vpcListings is the collector's state of a VPC between listings.
type vpcListings struct {
	busy   atomic.Bool // a listing is in flight and owns seen
	seen   sightings   // the orphans of the last listing
	looked time.Time   // when orphans were last looked for
}

// run lists ports until ctx ends. VPCs are independent: one whose provider does not answer does not delay the others.
// The providers limit the number of concurrent calls.
func (c *collector) run(ctx context.Context) error {
	var flying sync.WaitGroup
	defer flying.Wait()
	all := map[string]*vpcListings{}
	clk, wake := c.o.Clock, c.states.vanished.wake
	next := clk.Now().Add(c.o.Listing)
	for {
		forVanished := false
		select {
		case <-ctx.Done():
			return nil
		case <-clk.After(next.Sub(clk.Now())):
			next = clk.Now().Add(c.o.Listing)
		case <-wake:
			forVanished = true
			select {
			case <-ctx.Done():
				return nil
			case <-clk.After(vanishedPause):
			}
		}
		uids, err := c.api.vpcs(ctx)
		if err != nil {
			if forVanished {
				wake.Set()
			}
			continue
		}
		vpcs := slices.Sorted(maps.Values(uids))
		if forVanished {
			vpcs = c.states.vanished.vpcs(vpcs)
		} else {
			c.o.Metrics.keepOnly(vpcs)
			maps.DeleteFunc(all, func(vpc string, l *vpcListings) bool { return !l.busy.Load() && !slices.Contains(vpcs, vpc) })
		}
		for _, vpc := range vpcs {
			l := all[vpc]
			if l == nil {
				l = &vpcListings{seen: sightings{}, looked: clk.Now()}
				all[vpc] = l
			}
			if !l.busy.CompareAndSwap(false, true) {
				if forVanished {
					wake.Set() // the listing in flight may have started before
				}
				continue
			}
			flying.Go(func() {
				err := c.collect(ctx, vpc, l)
				l.busy.Store(false)
				if err == nil || !forVanished {
					return
				}
				select {
				case <-ctx.Done():
				case <-clk.After(vanishedAgain):
					wake.Set()
				}
			})
		}
	}
}

// collect lists the ports of one VPC, and looks for orphans if that is due.
func (c *collector) collect(ctx context.Context, vpc string, l *vpcListings) error {
	now := c.o.Clock.Now()
	all := now.Sub(l.looked) >= c.o.Orphans
	if err := c.list(ctx, vpc, l.seen, all); err != nil {
		c.o.Logger.Warn("listing the ports of a VPC failed, will try again", "vpc", vpc, "err", err)
		return err
	}
	if all {
		l.looked = now
	}
	return nil
}

// list lists the ports of one VPC. It deletes ports of vanished PodNICs and, if all is set, other orphans that were seen
// for long enough.
func (c *collector) list(ctx context.Context, vpc string, seen sightings, all bool) error {
	opened, err := c.o.Networks.Of(vpc)
	if err != nil {
		return nil // reported in the VPC's condition
	}
	began := c.o.Clock.Now()
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ports, err := opened.Provider.Ports(bounded, vpcport.Filter{NetworkID: opened.Network.ID, Owner: vpcport.Owner})
	defer func() { c.o.Metrics.listed(vpc, err) }()
	if err != nil {
		return err
	}
	vpcs, err := c.api.vpcs(ctx)
	if err != nil {
		return err
	}
	byUID := map[types.UID][]vpcport.Port{}
	for _, p := range ports {
		if uid, isWarm := p.WarmVPC(c.o.Cluster); isWarm && vpcs[uid] != "" {
			continue // belongs to the warm pool
		}
		if uid, ok := p.NIC(c.o.Cluster); ok && (p.Device != "" || !c.states.has(types.UID(uid))) { // an existing NIC looks for its port itself
			byUID[types.UID(uid)] = append(byUID[types.UID(uid)], p)
		}
	}
	for _, key := range c.states.compare(vpc, byUID, began) {
		c.nics.AddObject(key, 0)
	}
	c.o.Metrics.strays(vpc, c.states.strays(byUID))
	if err := c.pool.Listed(bounded, vpc, ports, began); err != nil {
		c.o.Logger.Warn("keeping warm ports failed, will try again", "vpc", vpc, "err", err)
	}
	err = c.orphans(ctx, opened, byUID, c.states.vanished.in(vpc, byUID, began), seen, all)
	return err
}

// orphans deletes or returns the due orphans whose PodNIC does not exist at the API server either.
func (c *collector) orphans(ctx context.Context, opened Opened, byUID map[types.UID][]vpcport.Port, gone map[types.UID]time.Time, seen sightings, all bool) error {
	now, orphans, there := c.o.Clock.Now(), map[types.UID][]vpcport.Port{}, map[string]bool{}
	for uid, ports := range byUID {
		if c.states.has(uid) {
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
	due := dueOrphans(orphans, gone, seen, all, now, opened.Provider.Traits().Cooling, c.o.OrphanAge)
	if len(due) == 0 {
		return nil
	}
	list := &v1alpha1.PodNICList{}
	if err := c.api.live.List(ctx, list); err != nil {
		return fmt.Errorf("list PodNICs: %w", err)
	}
	recorded := map[string]bool{} // also ports marked with the UID of a deleted VPC object
	for i := range list.Items {
		delete(due, list.Items[i].UID)
		recorded[list.Items[i].Status.PortID] = true
	}
	for uid, ports := range due {
		for _, p := range ports {
			if recorded[p.ID] {
				continue
			}
			if err := c.remove(ctx, opened.Provider, string(uid), p); err != nil {
				return err
			}
		}
	}
	return nil
}

// dueOrphans returns the orphans to release now: those of PodNICs that vanished while this process was watching, once
// they have cooled down, and with all also those seen for as long as age.
func dueOrphans(orphans map[types.UID][]vpcport.Port, gone map[types.UID]time.Time, seen sightings, all bool, now time.Time, cooling, age time.Duration) map[types.UID][]vpcport.Port {
	due := map[types.UID][]vpcport.Port{}
	for uid, ports := range orphans {
		at, vanished := gone[uid]
		for _, p := range ports {
			if vanished && now.Sub(at) >= cooling || all && now.Sub(seen[p.ID]) >= age {
				due[uid] = append(due[uid], p)
			}
		}
	}
	return due
}

// remove deletes an orphan that Berth created. From a user's port it only removes Berth's marks. A port without a device looks free
// to other clients, so one that was taken since the listing is left alone.
func (c *collector) remove(ctx context.Context, provider vpcport.Provider, uid string, p vpcport.Port) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if p.Device == "" {
		now, err := provider.Get(bounded, p.ID)
		if of, ok := now.NIC(c.o.Cluster); err != nil || !ok || of != uid {
			return err
		}
	}
	if madeByBerth(c.o.Cluster, uid, p) {
		if err := provider.Delete(bounded, p.ID); err != nil {
			return err
		}
		c.o.Logger.Warn("deleted a port without a PodNIC", "port", p.ID, "name", p.Name)
		c.o.Metrics.swept.WithLabelValues(sweptDeleted).Inc()
		return nil
	}
	none := ""
	if _, err := provider.Update(bounded, p.ID, p.Revision, vpcport.Change{Device: &none, Owner: &none, Host: &none}); err != nil {
		return err
	}
	c.o.Logger.Warn("returned a user's port without a PodNIC", "port", p.ID, "name", p.Name)
	c.o.Metrics.swept.WithLabelValues(sweptReturned).Inc()
	return nil
}

// madeByBerth reports whether Berth created a port, for this NIC or as a warm port. A user's port is older than the PodNIC, so its
// name and MAC address do not depend on the UID.
func madeByBerth(cluster, uid string, p vpcport.Port) bool {
	return p.MadeFor(cluster, uid) || strings.HasPrefix(p.Name, warm.NamePrefix)
}

// vanished tracks the PodNICs that disappeared before their ports were released, because somebody removed the finalizer or
// etcd was restored. Each is kept until a listing shows no port of it.
type vanished struct {
	clock  clock.Clock
	settle time.Duration
	// wake is set when a PodNIC is added.
	wake retry.Signal

	mu  sync.Mutex // guards all
	all map[types.UID]vanishedNIC
}

// vanishedNIC is a PodNIC that vanished.
type vanishedNIC struct {
	vpc      string
	at       time.Time // when it vanished, or when its last call ended
	inFlight bool      // a call for it is in flight, which may still create a port
}

func newVanished(c clock.Clock, settle time.Duration) *vanished {
	return &vanished{clock: c, settle: settle, wake: retry.NewSignal(), all: map[types.UID]vanishedNIC{}}
}

// leaves reports whether a NIC whose PodNIC is gone may have left a port. A user's port counts only if it carries the NIC's
// mark: otherwise it was never taken, or was returned.
func (n *nic) leaves(uid types.UID) bool {
	o := n.observed
	port := o.Port != nil && (!n.given || strings.HasSuffix(o.Port.Device, ":"+string(uid)))
	return n.call.inFlight || port || len(o.Extra) > 0 || !o.Looked && (o.Kept || o.Recorded != "")
}

// add adds a vanished PodNIC of a VPC.
func (v *vanished) add(uid types.UID, vpc string, inFlight bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all[uid] = vanishedNIC{vpc: vpc, at: v.clock.Now(), inFlight: inFlight}
	v.wake.Set()
}

// remove drops a PodNIC that exists again.
func (v *vanished) remove(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, uid)
}

// callEnded records the end of a call for a PodNIC that has vanished.
func (v *vanished) callEnded(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.all[uid]; n.inFlight {
		v.all[uid] = vanishedNIC{vpc: n.vpc, at: v.clock.Now()}
		v.wake.Set()
	}
}

// in returns when the PodNICs of a VPC that still have listed ports vanished. Others are dropped if the listing began long
// enough after they vanished to show all their ports.
func (v *vanished) in(vpc string, listed map[types.UID][]vpcport.Port, began time.Time) map[types.UID]time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[types.UID]time.Time{}
	for uid, n := range v.all {
		switch {
		case n.vpc != vpc:
		case len(listed[uid]) > 0:
			out[uid] = n.at
		case !n.inFlight && began.Sub(n.at) >= v.settle:
			delete(v.all, uid)
		}
	}
	return out
}

// vpcs returns which of the existing VPCs have vanished PodNICs, and drops those of other VPCs.
func (v *vanished) vpcs(existing []string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	names := map[string]bool{}
	maps.DeleteFunc(v.all, func(_ types.UID, n vanishedNIC) bool { return !slices.Contains(existing, n.vpc) })
	for _, n := range v.all {
		names[n.vpc] = true
	}
	return slices.Sorted(maps.Keys(names))
}
