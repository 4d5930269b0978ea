package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/datapath"
)

// A damaged record may belong to a pod that lives: its kernel state is left
// alone and its addresses are held, until a DEL of that attachment comes or
// its link is gone.

// quarantineKey is the holder, in the source, of a damaged record's addresses.
func quarantineKey(q attachment.Quarantined) attachment.Key {
	return attachment.Key{Network: "quarantined", ContainerID: q.File, IfName: q.HostLink}
}

// delQuarantined is DEL for a key without a record: of a damaged one, or of
// an attachment that is not known at all.
func (d *Daemon) delQuarantined(ctx context.Context, key attachment.Key) error {
	link := hostLinkName(key)
	for _, q := range d.quarantinedList() {
		if q.HostLink == link {
			return d.releaseQuarantined(ctx, q)
		}
	}
	d.Source.Release(key) // a lease whose ADD broke off before it was recorded
	return nil
}

// ofNoLink tells whether a damaged record is of no attachment that can be: no
// link has the name that its file says.
func ofNoLink(q attachment.Quarantined) bool {
	return !q.Cooling && !datapath.IsHostLinkName(q.HostLink)
}

// releaseNameless lets go of a damaged record of no attachment that can be. The
// addresses in it cool, unless somebody has them; its file is kept.
func (d *Daemon) releaseNameless(ctx context.Context, q attachment.Quarantined) error {
	d.Log.Warn("a damaged record is of no pod's link: nothing depends on it, its file is kept", "file", q.File, "addresses", q.Addresses, "err", q.Reason)
	for _, a := range q.Addresses {
		if _, held := d.Store.ByAddr(a); held {
			continue
		}
		if _, cools := d.Store.Cooling(a); cools {
			continue
		}
		released := d.Clock.Boot()
		if err := d.cooling.put(ctx, attachment.Cooling{Addr: a, ReleasedBoot: released}); err != nil {
			return recordFailure(err)
		}
		d.Source.RestoreCooling(a, d.Clock.Now())
		d.cooling.add(released, a)
	}
	if err := d.Store.Keep(q); err != nil {
		return recordFailure(err)
	}
	d.forgetQuarantined(q)
	d.reportQuarantine()
	return nil
}

// releaseQuarantined removes what a damaged record stood for. Its addresses cool.
// Without space for that the outcome is heldBack.
func (d *Daemon) releaseQuarantined(ctx context.Context, q attachment.Quarantined) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if ofNoLink(q) {
		return d.releaseNameless(kctx, q)
	}
	released := d.Clock.Boot()
	var unrecorded error
	for _, a := range q.Addresses {
		if err := d.cooling.put(kctx, attachment.Cooling{Addr: a, HostLink: q.HostLink, ReleasedBoot: released}); attachment.IsNoSpace(err) {
			unrecorded = err
		} else if err != nil {
			return recordFailure(err)
		}
	}
	if q.HostLink != "" {
		for _, pod := range podsOf(q.HostLink, q.Addresses) {
			if err := d.Kernel.DetachPod(kctx, pod); err != nil {
				return kernelFailure(err)
			}
		}
		d.reaper.add(q.HostLink, attachment.Netns{})
	}
	if unrecorded != nil {
		return recordFailure(&heldBack{unrecorded})
	}
	if err := d.Store.Discard(q); err != nil {
		return recordFailure(err)
	}
	d.Source.Release(quarantineKey(q))
	d.cooling.add(d.Clock.Boot(), q.Addresses...)
	d.forgetQuarantined(q)
	d.reportQuarantine()
	return nil
}

func (d *Daemon) forgetQuarantined(q attachment.Quarantined) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quarantined = slices.DeleteFunc(d.quarantined, func(o attachment.Quarantined) bool { return o.File == q.File })
}

func (d *Daemon) quarantinedList() []attachment.Quarantined {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.quarantined)
}

// quarantinedLinks names the links of damaged records, which no repair may take
// for nobody's.
func (d *Daemon) quarantinedLinks() (links []string) {
	for _, q := range d.quarantinedList() {
		if q.HostLink != "" {
			links = append(links, q.HostLink)
		}
	}
	return links
}

func (d *Daemon) setQuarantinedAddresses(q attachment.Quarantined) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.quarantined {
		if d.quarantined[i].File == q.File {
			d.quarantined[i].Addresses = q.Addresses
		}
	}
}

func (d *Daemon) reportQuarantine() {
	list := d.quarantinedList()
	if len(list) == 0 {
		d.conditions.set(ConditionRecords, true, "AllRead", "")
		return
	}
	var files []string
	for _, q := range list {
		files = append(files, q.File)
	}
	d.conditions.set(ConditionRecords, false, "Quarantined",
		fmt.Sprintf("damaged records of attachments that still have a link: %s; their addresses are held until the pods are deleted", strings.Join(files, ", ")))
}
