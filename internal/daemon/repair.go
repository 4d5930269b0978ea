package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/source"
)

// Upkeep is what the daemon asks of the data path besides pods. Network
// implements it.
type Upkeep interface {
	// Watch reports kernel changes until ctx ends (datapath.Node.Watch).
	Watch(ctx context.Context) (<-chan datapath.Event, error)
	// Repair makes the node's own state and all pods as wanted, removes what
	// is Berth's and not wanted, but for the pod links to spare, and names what
	// it did. It fails with ErrSupplyUnknown, having done nothing, while the
	// source has not told which blocks there are, or when there is state of an
	// ENI that was not set up yet and that mayNeed does not disown.
	Repair(ctx context.Context, pods []datapath.Pod, spare []string, mayNeed func(deviceIndex int) bool) ([]string, error)
	// ForwardPolicy finds packet filters that drop pods' packets by default.
	ForwardPolicy(ctx context.Context) ([]datapath.Finding, error)
	// ARPFiltered tells whether the kernel drops pods' ARP requests
	// (datapath.Node.ARPFiltered).
	ARPFiltered() bool
}

// repairDebounce gathers the events of one disturbance.
const repairDebounce = 200 * time.Millisecond

// repairLoop repairs what others change, at once when it is seen and at an
// interval, until ctx ends.
func (d *Daemon) repairLoop(ctx context.Context) {
	if d.Upkeep == nil {
		return
	}
	events := d.watch(ctx)
	d.repair(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				events = d.watch(ctx)
				continue
			}
			if !d.disturbed(e) {
				continue
			}
			d.drainEvents(ctx, events, d.Clock.After(repairDebounce))
		case <-d.Clock.After(d.RepairInterval):
		}
		d.repair(ctx)
	}
}

// watch never fails for good: without events the interval remains.
func (d *Daemon) watch(ctx context.Context) <-chan datapath.Event {
	events, err := d.Upkeep.Watch(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.Log.Warn("watching the kernel, repairing by the interval only", "err", err)
		}
		return nil
	}
	return events
}

// disturbed tells the source of links that came or went, and returns whether
// there may be something to repair: not for a link that is no pod's, since a
// link brings nothing of Berth's along, and takes with it what there was.
func (d *Daemon) disturbed(e datapath.Event) bool {
	if e.Kind != datapath.StateLost && d.LinksChanged != nil {
		d.LinksChanged()
	}
	if (e.Kind == datapath.LinkAppeared || e.Kind == datapath.LinkVanished) && !strings.HasPrefix(e.Link, datapath.LinkPrefix) {
		return false
	}
	d.Log.Debug("kernel state changed", "what", e.What) // the repair tells at Info if it was not our own doing
	return true
}

// drainEvents takes events until the end of the gathering time.
func (d *Daemon) drainEvents(ctx context.Context, events <-chan datapath.Event, end <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			d.disturbed(e)
		}
	}
}

func (d *Daemon) repair(ctx context.Context) {
	var pods []datapath.Pod
	for _, rec := range d.Store.Records() {
		if rec.State == attachment.Ready {
			pods = append(pods, podOf(rec))
		}
	}
	did, err := d.Upkeep.Repair(ctx, pods, d.quarantinedLinks(), d.mayNeedENI)
	if errors.Is(err, ErrSupplyUnknown) {
		did, err = d.repairPods(ctx)
	}
	if len(did) > 0 {
		d.Metrics.repairs.WithLabelValues().Add(float64(len(did)))
		d.Log.Warn("repaired kernel state", "what", did)
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warn("repairing kernel state, will try again", "err", err)
	}
	d.lookAtForwarding(ctx)
	d.lookAtARP()
}

// mayNeedENI tells whether an ENI with this device index could be in use: by a
// pod, or because the source has one there or has not listed any yet.
func (d *Daemon) mayNeedENI(deviceIndex int) bool {
	groups := d.Source.Snapshot().Groups
	return len(groups) == 0 ||
		slices.ContainsFunc(groups, func(g source.GroupInfo) bool { return g.DeviceIndex == deviceIndex }) ||
		slices.ContainsFunc(d.Store.Records(), func(r attachment.Record) bool { return r.Lease.DeviceIndex == deviceIndex })
}

// repairPods puts back what pods miss on the node and removes nothing.
func (d *Daemon) repairPods(ctx context.Context) (did []string, err error) {
	inv, err := d.Kernel.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	var have []string
	for _, r := range inv.Routes {
		have = append(have, r.Addr.String()+" "+r.Link)
	}
	var errs []error
	for _, rec := range d.Store.Records() {
		missing := rec.State == attachment.Ready && slices.ContainsFunc(podOf(rec).Addrs(), func(a netip.Addr) bool {
			return !slices.Contains(have, a.String()+" "+rec.HostLink)
		})
		if !missing {
			continue
		}
		if err := d.repairPod(ctx, rec); err != nil {
			errs = append(errs, err)
			continue
		}
		did = append(did, "pod link "+rec.HostLink)
	}
	return did, errors.Join(errs...)
}

func (d *Daemon) repairPod(ctx context.Context, seen attachment.Record) error {
	unlock, err := d.locks.lock(ctx, seen.Key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := d.Store.Get(seen.Key)
	if !ok || rec.State != attachment.Ready {
		return nil
	}
	_, err = d.addAgain(ctx, rec)
	return err
}

// lookAtForwarding keeps the condition about others' packet filters.
func (d *Daemon) lookAtForwarding(ctx context.Context) {
	found, err := d.Upkeep.ForwardPolicy(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.Log.Warn("looking for packet filters that drop forwarded packets", "err", err)
		}
		return
	}
	if len(found) == 0 {
		d.conditions.set(ConditionForwarding, true, "NoDropPolicy", "")
		return
	}
	var messages []string
	for _, f := range found {
		messages = append(messages, f.Message)
	}
	d.conditions.set(ConditionForwarding, false, "DropPolicy", strings.Join(messages, "; "))
}

// lookAtARP keeps the condition about pods' ARP requests. Pods have no use for
// them, so nothing else shows on a kernel that cannot drop them.
func (d *Daemon) lookAtARP() {
	switch {
	case d.Upkeep == nil:
	case d.Upkeep.ARPFiltered():
		d.conditions.set(ConditionARP, true, "Dropped", "")
	default:
		d.conditions.set(ConditionARP, false, "NotSupported", "this kernel has no nftables tables of family arp (CONFIG_NF_TABLES_ARP): "+
			"a pod that asks by ARP without end can fill the neighbour table that all of the node use")
	}
}
