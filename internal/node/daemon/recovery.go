package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/source"
)

// recovery compares records, kernel and runtime during one start.
type recovery struct {
	d      *Daemon
	links  map[string][]netip.Addr // pod links in the kernel, with the addresses routed to them
	listed map[string]bool         // container IDs that the runtime knows; nil: unknown
	owned  map[string]bool         // links of records and damaged records
	parts  []string                // partLinks of the quarantine
	later  bool                    // removing a part failed; the sweep removes the others, so that startup does not wait for each
}

// recoverState finishes or undoes operations that an earlier daemon left incomplete, restores leases and
// cooling addresses in the source, and removes kernel state without a record. It must complete before the
// daemon serves. The reaper is already running.
func (d *Daemon) recoverState(ctx context.Context) error {
	d.usable.read()
	inv, err := d.Kernel.Inventory(ctx)
	if err != nil {
		return fmt.Errorf("listing the kernel's pod links: %w", err)
	}
	r := &recovery{d: d, links: map[string][]netip.Addr{}, owned: map[string]bool{}, listed: d.sweeper.runtimeLists(ctx)}
	for _, l := range inv.Links {
		r.links[l.Name] = nil
	}
	for _, route := range inv.Routes {
		if _, ok := r.links[route.Link]; ok {
			r.links[route.Link] = append(r.links[route.Link], route.Addr)
		}
	}
	r.cooling(ctx) // first, because addresses that are released below start to cool
	for _, rec := range d.Store.Records() {
		if err := r.attachment(ctx, rec); err != nil {
			d.Log.Error("recovering an attachment failed, will try again", "attachment", rec.Key.String(), "state", rec.State, "err", err)
		}
	}
	damaged := d.quarantine.all()
	if len(damaged) > 0 {
		r.parts = d.quarantine.partLinks(ctx)
	}
	for _, q := range damaged {
		if err := r.quarantined(ctx, q); err != nil {
			d.Log.Error("recovering a damaged record failed", "file", q.File, "err", err)
		}
	}
	d.quarantine.report()
	r.leftovers(ctx)
	d.keepers.takeUp(ctx)
	r.awaitReaper(ctx)
	return nil
}

// attachment restores, finishes or undoes one record.
func (r *recovery) attachment(ctx context.Context, rec attachment.Record) error {
	_, inKernel := r.links[rec.HostLink]
	rebooted, outlives := rec.BootID != r.d.Store.Node().BootID && !inKernel, r.d.attachments.parts.outlive(rec)
	if rebooted && !outlives {
		return r.forget(rec)
	}
	r.owned[rec.HostLink] = true
	// Restore first: if an undo fails, no other pod may get the address.
	if !rec.Lease.Empty() {
		if err := r.d.Source.Restore(attachment.Request{Key: rec.Key, Pod: rec.Pod}, rec.Lease); err != nil {
			return fmt.Errorf("restoring its addresses: %w", err)
		}
	}
	if rec.State == attachment.Ready && !rebooted {
		return r.ready(ctx, rec)
	}
	if outlives && r.later {
		return errors.New("left to the sweep, as NICs of another attachment could not be unplugged")
	}
	err := r.finish(ctx, rec, rebooted)
	r.later = r.later || err != nil && outlives
	return err
}

// finish undoes or finishes an incomplete attachment, or one that a reboot ended. A reboot leaves
// some state of NICs, such as rows of Open vSwitch's database.
func (r *recovery) finish(ctx context.Context, rec attachment.Record, rebooted bool) error {
	switch {
	case rebooted:
		kctx, cancel := kernelContext(ctx)
		defer cancel()
		if err := r.d.attachments.parts.remove(kctx, rec); err != nil {
			return err
		}
		if err := r.forget(rec); err != nil {
			return err
		}
		r.d.Source.Cancel(rec.Key)
		return nil
	case rec.State == attachment.Pending:
		r.d.Log.Info("undoing an attachment that was set up in part", "attachment", rec.Key.String())
		return r.d.attachments.undo(ctx, rec)
	default:
		return r.d.attachments.release(ctx, rec, "finishing an interrupted removal")
	}
}

// forget drops the record of an attachment that a reboot ended.
func (r *recovery) forget(rec attachment.Record) error {
	r.d.Log.Info("forgetting an attachment from before the reboot", "attachment", rec.Key.String())
	return r.d.Store.Delete(rec.Key)
}

// ready restores a complete attachment; keepers check its parts after startup. If its sandbox is
// gone, it is released now if the runtime confirms that, and otherwise by the sweep.
func (r *recovery) ready(ctx context.Context, rec attachment.Record) error {
	alive, err := part.Alive(r.d.attachments.inspect, rec.Netns)
	if err != nil {
		return fmt.Errorf("inspecting its network namespace: %w", err)
	}
	if !alive {
		if r.listed == nil || r.listed[rec.Key.ContainerID] {
			return nil
		}
		return r.d.attachments.release(ctx, rec, "sandbox gone")
	}
	_, err = r.d.attachments.again(ctx, rec, r.d.attachments.wiring.wireLease)
	return err
}

// quarantined withholds the addresses of a damaged record if its link exists, and otherwise lets them
// cool.
func (r *recovery) quarantined(ctx context.Context, q attachment.Quarantined) error {
	if ofNoLink(q) {
		return r.d.quarantine.releaseNameless(ctx, q)
	}
	routed, inKernel := r.links[q.HostLink]
	for _, a := range routed { // the file may be incomplete
		if !slices.Contains(q.Addresses, a) {
			q.Addresses = append(slices.Clone(q.Addresses), a)
		}
	}
	r.d.quarantine.setAddresses(q.File, q.Addresses)
	free := func(a netip.Addr) bool { _, held := r.d.Store.ByAddr(a); return !held }
	if len(q.Addresses) > 0 && !slices.ContainsFunc(q.Addresses, free) {
		return r.d.Store.Discard(q) // intact records hold all addresses
	}
	lives := inKernel || slices.Contains(r.parts, q.HostLink)
	if lives {
		r.owned[q.HostLink] = true
	}
	if lease := leaseOf(q.Addresses); !lease.Empty() {
		if err := r.d.Source.Restore(attachment.Request{Key: quarantineKey(q)}, lease); err != nil {
			return fmt.Errorf("holding its addresses: %w", err)
		}
	}
	if lives {
		return nil
	}
	return r.d.quarantine.release(ctx, q)
}

// leaseOf returns a lease with the first address of each family.
func leaseOf(addrs []netip.Addr) (lease source.Lease) {
	for _, a := range addrs {
		if a.Is4() && !lease.IPv4.IsValid() {
			lease.IPv4 = a
		}
		if a.Is6() && !lease.IPv6.IsValid() {
			lease.IPv6 = a
		}
	}
	return lease
}

// cooling restores cooling addresses in the source and, before them, the addresses that have cooled since
// boot, in the order of release. A reboot ends cooling, and an attachment's record takes
// precedence over a cooling record.
func (r *recovery) cooling(ctx context.Context) {
	boot := r.d.Clock.Boot() // read first: a stall between the two readings can only prolong cooling
	now := r.d.Clock.Now()
	var over, still []cooled
	for _, c := range r.d.Store.CoolingRecords() {
		_, held := r.d.Store.ByAddr(c.Addr)
		switch {
		case held || c.BootID != r.d.Store.Node().BootID:
			if err := r.d.Store.DeleteCooling(c.Addr); err != nil {
				r.d.Log.Error("removing a cooling record failed", "address", c.Addr, "err", err)
			}
		case boot-c.ReleasedBoot >= r.d.Source.CoolingPeriod():
			over = append(over, cooled{c.Addr, c.ReleasedBoot})
		default:
			still = append(still, cooled{c.Addr, c.ReleasedBoot})
		}
	}
	r.d.cooling.end(ctx, over)
	for _, f := range r.d.Store.Freed() {
		_, held := r.d.Store.ByAddr(f.Addr)
		_, cools := r.d.Store.Cooling(f.Addr)
		if !held && !cools {
			r.d.Source.RestoreCooling(f.Addr, now.Add(min(0, f.ReleasedBoot-boot)))
		}
	}
	for _, c := range still {
		r.d.Source.RestoreCooling(c.addr, now.Add(min(0, c.released-boot)))
		r.d.cooling.add(c.released, c.addr)
	}
}

// leftovers removes pod links without a record. Their addresses were in use until now, so they must cool.
func (r *recovery) leftovers(ctx context.Context) {
	for link, addrs := range r.links {
		if r.owned[link] {
			continue
		}
		level := slog.LevelInfo // a crash interrupted the DEL
		if len(addrs) > 0 {
			level = slog.LevelWarn
		}
		r.d.Log.Log(ctx, level, "removing a pod link without a record", "link", link, "addresses", addrs)
		if err := r.leftover(ctx, link, addrs); err != nil {
			r.d.Log.Error("removing a pod link without a record failed", "link", link, "err", err)
		}
	}
}

// awaitReaper waits up to kernelTimeout for the links that recovery removed.
func (r *recovery) awaitReaper(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	for _, p := range r.d.reaper.list() {
		if err := r.d.reaper.await(ctx, p.link, attachment.Netns{}); err != nil {
			r.d.Log.Warn("a removed pod link still exists", "link", p.link, "err", err)
			return
		}
	}
}

func (r *recovery) leftover(ctx context.Context, link string, addrs []netip.Addr) error {
	if err := r.d.quarantine.coolUnheld(ctx, link, addrs); err != nil {
		return err
	}
	if err := r.d.Kernel.DetachPod(ctx, link, addrs); err != nil {
		return err
	}
	r.d.reaper.add(link, attachment.Netns{})
	return nil
}
