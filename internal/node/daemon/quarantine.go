package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
)

// quarantine has the damaged records. One may belong to a pod that lives: its
// kernel state is left alone and its addresses are held, until a DEL of that
// attachment comes or its link is gone.
type quarantine struct {
	conditions *conditions

	mu   sync.Mutex // guards list
	list []attachment.Quarantined
}

func (q *quarantine) all() []attachment.Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.list)
}

// links names the links of damaged records, which no repair may take for nobody's.
func (q *quarantine) links() (links []string) {
	for _, one := range q.all() {
		if one.HostLink != "" {
			links = append(links, one.HostLink)
		}
	}
	return links
}

// setAddresses notes what the kernel tells of a record that tells no addresses.
func (q *quarantine) setAddresses(file string, addrs []netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.list {
		if q.list[i].File == file {
			q.list[i].Addresses = addrs
		}
	}
}

// remove forgets a damaged record of which nothing is left.
func (q *quarantine) remove(file string) {
	q.mu.Lock()
	q.list = slices.DeleteFunc(q.list, func(o attachment.Quarantined) bool { return o.File == file })
	q.mu.Unlock()
	q.report()
}

// report sets the condition.
func (q *quarantine) report() {
	var files []string
	for _, one := range q.all() {
		files = append(files, one.File)
	}
	if len(files) == 0 {
		q.conditions.set(ConditionRecords, true, "AllRead", "")
		return
	}
	q.conditions.set(ConditionRecords, false, "Quarantined",
		fmt.Sprintf("damaged records of attachments that still have a link: %s; their addresses are held until the pods are deleted", strings.Join(files, ", ")))
}

// quarantineKey is the holder, in the source, of a damaged record's addresses.
func quarantineKey(q attachment.Quarantined) attachment.Key {
	return attachment.Key{Network: "quarantined", ContainerID: q.File, IfName: q.HostLink}
}

// delQuarantined is DEL for a key without a record: of a damaged one, or of
// an attachment that is not known at all.
func (d *Daemon) delQuarantined(ctx context.Context, key attachment.Key) error {
	link := hostLinkName(key)
	for _, q := range d.quarantine.all() {
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
	if err := d.coolUnheld(ctx, "", q.Addresses); err != nil {
		return err
	}
	if err := d.Store.Keep(q); err != nil {
		return recordFailure(err)
	}
	d.quarantine.remove(q.File)
	return nil
}

// coolUnheld has addresses cool, of a link if it is known, that no attachment
// holds and that do not cool yet.
func (d *Daemon) coolUnheld(ctx context.Context, link string, addrs []netip.Addr) error {
	for _, a := range addrs {
		_, held := d.Store.ByAddr(a)
		_, cools := d.Store.Cooling(a)
		if held || cools {
			continue
		}
		released := d.Clock.Boot()
		if err := d.cooling.put(ctx, attachment.Cooling{Addr: a, HostLink: link, ReleasedBoot: released}); err != nil {
			return recordFailure(err)
		}
		d.Source.RestoreCooling(a, d.Clock.Now())
		d.cooling.add(released, a)
	}
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
	full, err := d.cooling.begin(kctx, q.Addresses, attachment.Cooling{HostLink: q.HostLink})
	if err != nil {
		return err
	}
	if q.HostLink != "" {
		if d.NICs != nil {
			if err := d.NICs.Clear(kctx, q.HostLink); err != nil {
				return nicFailure("unplugging what "+q.HostLink+" has left", err)
			}
		}
		if err := d.Kernel.DetachPod(kctx, q.HostLink, q.Addresses); err != nil {
			return kernelFailure(err)
		}
		d.reaper.add(q.HostLink, attachment.Netns{})
	}
	if full != nil {
		return recordFailure(&heldBack{full})
	}
	if err := d.Store.Discard(q); err != nil {
		return recordFailure(err)
	}
	d.Source.Release(quarantineKey(q))
	d.cooling.add(d.Clock.Boot(), q.Addresses...)
	d.quarantine.remove(q.File)
	return nil
}
