package enisource

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
)

// addresses is the state of the node's addresses for pods: who holds them and who waits. It is kept in memory only
// and is not safe for concurrent use: Source.mu guards it.
type addresses struct {
	alloc   *ipam.Node[attachment.Key]
	leases  map[attachment.Key]hold
	waiters addressqueue.Queue
	enis    enis // state of the ENIs' data paths and links

	inv         eni.Inventory  // as last received from the supplier or the file
	usable      bool           // an address has been assignable
	served      bool           // the inventory came from the supplier or the file
	unconfirmed bool           // it came from the file, and the supplier still has time to correct it
	releasing   []netip.Prefix // addresses that the supplier wants to release: no pod gets them
	withheld    []netip.Addr   // addresses that the node itself or other software has
}

// hold is one attachment's lease and its pod.
type hold struct {
	source.Lease
	pod attachment.Pod
}

// serve assigns addresses in the order of arrival while any is assignable. It is the only place that assigns
// addresses.
func (a *addresses) serve(now time.Time) {
	a.withdrawReleasing(now)
	for a.waiters.Len() > 0 && !a.unconfirmed {
		w := a.waiters.Front()
		t, ok := a.alloc.Take(w.Request.Key, a.inv.Families, now)
		if !ok {
			return
		}
		l := source.Lease{
			IPv4: t.Addresses[ipfamily.IPv4], IPv6: t.Addresses[ipfamily.IPv6],
			Origin: introspect.Origin{ENI: t.Group}, Uplink: t.Index,
		}
		a.leases[w.Request.Key] = hold{l, w.Request.Pod}
		w.Grant(l)
	}
}

// wait queues a request behind earlier ones, and serves the queue.
func (a *addresses) wait(req source.Request, now time.Time) *addressqueue.Waiter {
	w := a.waiters.Push(req)
	a.serve(now)
	return w
}

// held returns the lease of a key.
func (a *addresses) held(key attachment.Key) (source.Lease, bool) {
	h, ok := a.leases[key]
	return h.Lease, ok
}

// withdrawReleasing withdraws the addresses that the supplier wants to release, unless a pod holds them or they are
// cooling.
func (a *addresses) withdrawReleasing(now time.Time) {
	if len(a.releasing) > 0 {
		a.alloc.Expire(now)
		a.alloc.WithdrawThese(a.releasing)
	}
}

// restoreAllBut makes addresses assignable again that the supplier wanted to release before and that are not in back.
func (a *addresses) restoreAllBut(back []netip.Prefix) {
	freed := slices.DeleteFunc(a.releasing, func(p netip.Prefix) bool { return slices.Contains(back, p) })
	a.alloc.Restore(freed)
	a.releasing = slices.Clone(back)
}

// idle returns the entries of a list in which no address is used, cooling or withheld, sorted.
func (a *addresses) idle(list []netip.Prefix) (out []netip.Prefix) {
	out = slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return slices.ContainsFunc(a.withheld, p.Contains) })
	for v := range a.alloc.Busied() {
		out = slices.DeleteFunc(out, func(p netip.Prefix) bool { return p.Contains(v.Addr) })
	}
	return cloud.SortPrefixes(out)
}

// confirm adopts an inventory from the supplier.
func (a *addresses) confirm(inv eni.Inventory) {
	a.served, a.unconfirmed = true, false
	a.adopt(inv)
}

// adopt updates the allocator from an inventory. Removed addresses are gone immediately; new ones become
// assignable when the data path has them.
func (a *addresses) adopt(inv eni.Inventory) {
	gone, changed := a.enis.publish(inv.ENIs, a.holds)
	for _, id := range gone {
		a.alloc.LoseGroup(id)
	}
	for _, id := range changed {
		a.list(id)
	}
}

// list gives the allocator the usable addresses of an ENI: all of an ENI that is not ready yet, because
// none of them is assignable, and the programmed or busy ones of a ready ENI.
func (a *addresses) list(id string) {
	e := a.enis.published[id]
	done, ready := a.enis.programmed[id]
	g := ipam.Group{ID: id, Index: e.DeviceIndex, Addresses: addressesOf(e), Prefixes: prefixesOf(e)}
	if ready {
		addrs, prefixes := addressesOf(done), prefixesOf(done)
		g.Addresses = filter(g.Addresses, func(x netip.Addr) bool { return slices.Contains(addrs, x) || a.alloc.Busy(x) })
		g.Prefixes = filter(g.Prefixes, func(p netip.Prefix) bool { return slices.Contains(prefixes, p) })
	}
	a.alloc.SetGroup(g)
	a.alloc.SetReady(id, ready && !a.enis.lacksLink(id))
}

// holds reports whether a pod holds an address of an ENI.
func (a *addresses) holds(id string) bool {
	for _, l := range a.leases {
		if l.ENI == id {
			return true
		}
	}
	return false
}

// linkGone stops the assignment of an ENI's addresses until its link exists. had means that the node had the
// link before.
func (a *addresses) linkGone(id string, had bool) {
	if a.enis.linkGone(id, had) {
		a.alloc.SetReady(id, false)
	}
}

// linksChanged handles link changes that the data path found since setup.
func (a *addresses) linksChanged(changed map[string]source.LinkChange) {
	a.enis.unpublishedCame(changed)
	for id, change := range changed {
		if _, published := a.enis.published[id]; published || change == source.LinkGone && a.holds(id) {
			a.linkGone(id, true)
		}
	}
}

// end drops the lease of a key whose addresses the allocator took back, and serves the queue. own means that one of
// them is an ENI's own address, so the data path may have to change.
func (a *addresses) end(key attachment.Key, had ipam.Addresses, now time.Time) (own bool) {
	delete(a.leases, key)
	a.serve(now)
	return a.ownAddressFreed(had)
}

// ownAddressFreed reports whether one of the freed addresses is an ENI's own.
func (a *addresses) ownAddressFreed(l ipam.Addresses) bool {
	for _, e := range a.enis.published {
		if e.PrimaryIPv4.IsValid() && slices.Contains(l.List(), e.PrimaryIPv4) {
			return true
		}
	}
	return false
}

// differences returns the ENIs to remove from the data path and those to set.
func (a *addresses) differences() (remove []string, set []eni.ENI) {
	return a.enis.differences(a.holds, a.desired)
}

// desired returns the form of a published ENI for the data path. If its own address is no longer for
// pods, but a pod still holds it or held it recently, the address does not belong to the node yet.
func (a *addresses) desired(e eni.ENI) eni.ENI {
	if own := e.PrimaryIPv4; !e.Primary && a.alloc.Busy(own) && !slices.Contains(e.Addresses, own) {
		e.Addresses = append([]netip.Addr{own}, e.Addresses...)
	}
	return e
}

// programmed handles the result of SetENI: programmed addresses that are still published become assignable.
// first reports that no address was assignable before.
func (a *addresses) programmed(e eni.ENI, err error, now time.Time) (first bool) {
	if a.enis.set(e, err) {
		a.linkGone(e.ID, a.enis.has(e.ID))
	}
	if err != nil {
		return false
	}
	if _, ok := a.enis.published[e.ID]; ok {
		a.list(e.ID)
	}
	first = !a.usable && len(addressesOf(e))+len(prefixesOf(e)) > 0
	a.usable = a.usable || first
	a.serve(now)
	return first
}

// lost returns the addresses of running pods that no ENI of the node has, whether or not the ENI serves
// new pods.
func (a *addresses) lost() map[attachment.Key][]netip.Addr {
	lost := map[attachment.Key][]netip.Addr{}
	if !a.served || a.unconfirmed {
		return lost
	}
	for v := range a.alloc.Busied() {
		if v.Used && v.Group == "" && !slices.ContainsFunc(a.inv.ENIs, func(e eni.ENI) bool { return hasAddress(e, v.Addr) }) {
			lost[v.Key] = append(lost[v.Key], v.Addr)
		}
	}
	return lost
}

// room returns the number of pods that could get an address now.
func (a *addresses) room() (free int) {
	for _, g := range a.alloc.Groups() {
		if g.Ready {
			free += g.Assignable(a.inv.Families)
		}
	}
	return free
}

func hasAddress(e eni.ENI, a netip.Addr) bool {
	return !e.Primary && e.PrimaryIPv4 == a || slices.Contains(addressesOf(e), a) ||
		slices.ContainsFunc(prefixesOf(e), func(p netip.Prefix) bool { return p.Contains(a) })
}

// addressesOf returns an ENI's single addresses for pods, of both families.
func addressesOf(e eni.ENI) []netip.Addr { return slices.Concat(e.Addresses, e.IPv6) }

// prefixesOf returns an ENI's prefixes, of both families.
func prefixesOf(e eni.ENI) []netip.Prefix { return slices.Concat(e.Prefixes, e.IPv6Prefixes) }

func filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return !keep(x) })
}
