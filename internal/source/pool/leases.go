package pool

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// leases is the leases of attachments, and the addresses that cool outside known blocks.
type leases struct {
	byKey   map[attachment.Key]hold
	byAddr  map[netip.Addr]attachment.Key // of both families
	cooling map[netip.Addr]time.Time      // since when, of addresses whose block is not known here
}

// hold is the lease of an attachment, with its pod.
type hold struct {
	source.Lease
	pod           attachment.Pod
	allocatedIn   string // the pool whose allocator has it; empty while its block is not known
	notifiedOwner string // the owner of its address that the pod was notified of
}

// add adds a lease, whose addresses nobody else has.
func (l *leases) add(key attachment.Key, h hold) {
	l.byKey[key] = h
	for _, a := range h.Addrs() {
		l.byAddr[a] = key
	}
}

func (l *leases) drop(key attachment.Key) (hold, bool) {
	h, ok := l.byKey[key]
	if !ok {
		return h, false
	}
	delete(l.byKey, key)
	for _, a := range h.Addrs() {
		delete(l.byAddr, a)
	}
	return h, true
}

// cool notes that an address of no known block cools.
func (l *leases) cool(a netip.Addr, since time.Time) {
	if before, ok := l.cooling[a]; !ok || before.Before(since) {
		l.cooling[a] = since
	}
}

// outside returns the addresses that are used or cool and whose block is not known here.
func (l *leases) outside() (out []source.AddressInfo) {
	for key, h := range l.byKey {
		if h.allocatedIn == "" {
			out = append(out, source.AddressInfo{Addr: h.Addrs()[0], State: source.Used, Origin: h.Origin, Key: &key})
		}
	}
	for a, since := range l.cooling {
		out = append(out, source.AddressInfo{Addr: a, State: source.Cooling, Since: since})
	}
	return out
}

// conflict is a pod that has an address that something else has too.
type conflict struct {
	pod    attachment.Pod
	ifName string
	addr   netip.Addr
	owner  string
}

// conflicts returns the pods with addresses of a block that something else has too, each once. Of addresses that the
// node has itself (nodeHas, of owner self) the daemon tells the pods.
func (l *leases) conflicts(h *heldBlock, self string, nodeHas []netip.Addr) (out []conflict) {
	for key, lease := range l.byKey {
		if lease.Block != h.name {
			continue
		}
		addr, owner := h.ownerOf(lease.Addrs())
		byDaemon := owner == self && slices.Contains(nodeHas, addr)
		if owner != lease.notifiedOwner && owner != "" && !byDaemon {
			out = append(out, conflict{lease.pod, key.IfName, addr, owner})
		}
		lease.notifiedOwner = owner
		l.byKey[key] = lease
	}
	return out
}
