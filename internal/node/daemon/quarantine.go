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

// quarantine keeps the damaged records. Each may belong to a running pod: its kernel state is not
// touched and its addresses are withheld until a DEL of the attachment arrives or its link is gone.
type quarantine struct {
	attachments *attachments
	conditions  *conditions

	mu   sync.Mutex // guards list
	list []attachment.Quarantined
}

func (k *quarantine) all() []attachment.Quarantined {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.list)
}

// links returns the host links of damaged records, which repairs must not remove.
func (k *quarantine) links() (links []string) {
	for _, one := range k.all() {
		if one.HostLink != "" {
			links = append(links, one.HostLink)
		}
	}
	return links
}

// partLinks returns host links of attachments of which parts have state on the node. It includes at least those
// of damaged records, for which there is no other evidence.
func (k *quarantine) partLinks(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	links, err := k.attachments.parts.links(ctx)
	if err != nil {
		k.attachments.log.Warn("listing NICs and other parts on the node failed; damaged records are kept", "err", err)
		return k.links()
	}
	return links
}

// setAddresses stores the addresses that the kernel routes to the link of a damaged record.
func (k *quarantine) setAddresses(file string, addrs []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.list {
		if k.list[i].File == file {
			k.list[i].Addresses = addrs
		}
	}
}

// remove drops a damaged record that has no state left.
func (k *quarantine) remove(file string) {
	k.mu.Lock()
	k.list = slices.DeleteFunc(k.list, func(o attachment.Quarantined) bool { return o.File == file })
	k.mu.Unlock()
	k.report()
}

// report sets the condition.
func (k *quarantine) report() {
	var files []string
	for _, one := range k.all() {
		files = append(files, one.File)
	}
	if len(files) == 0 {
		k.conditions.set(ConditionRecords, true, "AllRead", "")
		return
	}
	k.conditions.set(ConditionRecords, false, "Quarantined",
		fmt.Sprintf("damaged records of attachments that still have a link: %s; their addresses are held until the pods are deleted", strings.Join(files, ", ")))
}

// quarantineKey is the holder of a damaged record's addresses in the source.
func quarantineKey(q attachment.Quarantined) attachment.Key {
	return attachment.Key{Network: "quarantined", ContainerID: q.File, IfName: q.HostLink}
}

// del handles a DEL without a record: for a damaged record or an unknown attachment.
func (k *quarantine) del(ctx context.Context, key attachment.Key) error {
	link := hostLinkName(key)
	for _, q := range k.all() {
		if q.HostLink == link {
			return k.release(ctx, q)
		}
	}
	k.attachments.source.Release(key) // release a lease whose ADD failed before it was recorded
	return nil
}

// ofNoLink reports whether a damaged record cannot belong to an attachment, because the name of its file
// contains no valid link name.
func ofNoLink(q attachment.Quarantined) bool {
	return !q.Cooling && !datapath.IsHostLinkName(q.HostLink)
}

// releaseNameless releases a damaged record that cannot belong to an attachment. Its addresses cool
// unless they are held. The file is kept.
func (k *quarantine) releaseNameless(ctx context.Context, q attachment.Quarantined) error {
	k.attachments.log.Warn("a damaged record belongs to no pod's link; its file is kept", "file", q.File, "addresses", q.Addresses, "err", q.Reason)
	if err := k.coolUnheld(ctx, "", q.Addresses); err != nil {
		return err
	}
	if err := k.attachments.store.Keep(q); err != nil {
		return recordFailure(err)
	}
	k.remove(q.File)
	return nil
}

// coolUnheld starts the cooling of addresses that no attachment holds and that are not cooling yet.
func (k *quarantine) coolUnheld(ctx context.Context, link string, addrs []netip.Addr) error {
	for _, a := range addrs {
		_, held := k.attachments.store.ByAddr(a)
		_, cools := k.attachments.store.Cooling(a)
		if held || cools {
			continue
		}
		released := k.attachments.clock.Boot()
		if err := k.attachments.cooling.put(ctx, attachment.Cooling{Addr: a, HostLink: link, ReleasedBoot: released}); err != nil {
			return recordFailure(err)
		}
		k.attachments.source.RestoreCooling(a, k.attachments.clock.Now())
		k.attachments.cooling.add(released, a)
	}
	return nil
}

// release removes the attachment of a damaged record. Its addresses cool. Without space for cooling
// records the error is a heldBack.
func (k *quarantine) release(ctx context.Context, q attachment.Quarantined) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if ofNoLink(q) {
		return k.releaseNameless(kctx, q)
	}
	full, err := k.attachments.cooling.begin(kctx, q.Addresses, attachment.Cooling{HostLink: q.HostLink})
	if err != nil {
		return err
	}
	if q.HostLink != "" {
		if err := k.attachments.parts.clear(kctx, q.HostLink); err != nil {
			return err
		}
		if err := k.attachments.wiring.kernel.DetachPod(kctx, q.HostLink, q.Addresses); err != nil {
			return kernelFailure(err)
		}
		k.attachments.reaper.add(q.HostLink, attachment.Netns{})
	}
	if full != nil {
		return recordFailure(&heldBack{full})
	}
	if err := k.attachments.store.Discard(q); err != nil {
		return recordFailure(err)
	}
	k.attachments.source.Release(quarantineKey(q))
	k.attachments.cooling.add(k.attachments.clock.Boot(), q.Addresses...)
	k.remove(q.File)
	return nil
}
