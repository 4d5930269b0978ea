// Package oracle verifies that the views of a lab agree: kernels, berthd's records and introspection, API objects, and
// the clouds. It derives the desired state from the documentation, not from Berth's planners.
package oracle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// Check compares four views of the lab with each other: the kernel of every node and pod, berthd's records on
// disk, its introspection document, and the state of the cloud. It returns all violations of
// docs/contribute/architecture.md, "Crash safety":
//
//   - no address is used twice, or both in use and cooling;
//   - every address of a pod belongs to an ENI that EC2 has attached to the pod's node, all addresses of a pod
//     belong to the same ENI, and a pod has one address of each family that it should have;
//   - every pod link, route, rule, ENI table and record belongs to an existing pod or ENI, and vice versa;
//   - no ENI of Berth is detached, or attached to an instance that does not exist;
//   - the counts of the four views agree;
//   - in pool mode, every block matches its pool and index, belongs to one node, is announced only by that
//     node, and is reported accordingly;
//   - in operator mode, a node's NodeNetwork lists the addresses that EC2 has assigned as available, and those
//     of pods and cooling ones as used, and no address is available in two NodeNetworks;
//   - if pods have ports, the pods, PodNICs, cloud ports, OVSDB rows, links and records describe the same NICs,
//     and Berth has no other port;
//   - a pod whose first interface is a branch interface has its addresses and none of the node's, and the node
//     has exactly the links, rules, routes and nftables chains of such pods;
//   - with egress, the conditions of Egress;
//   - with network policies, the kernel, introspection and the stored file of each node have those that the API's
//     objects mean (NetworkPolicies).
//
// The lab must be idle: objects that are being created or removed are reported as violations. Wait waits until the lab
// is idle.
func Check(ctx context.Context, l *lab.Lab) []error {
	if l.Mode == lab.PortMode {
		return checkPorts(ctx, l)
	}
	books := l.Snapshot()
	nodes := l.Nodes()
	var errs []error
	var networks map[string]*v1alpha1.NodeNetwork
	var pools *poolView
	var routed map[string]bool
	switch l.Mode {
	case lab.OperatorMode:
		networks, errs = viewNetworks(ctx, l, nodes)
		var err error
		if routed, err = routedPods(ctx, l); err != nil {
			return []error{err}
		}
	case lab.PoolMode:
		var err error
		if pools, err = viewPools(ctx, l); err != nil {
			return []error{err}
		}
		errs = append(pools.errs, announced(ctx, l, pools)...)
	}
	found := make([]findings, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			found[i] = findings{node: n, mode: l.Mode, families: l.IPFamilies, network: networks[n.Name], routed: routed, local: map[netip.Addr]*node.Pod{}}
			found[i].localFamily, found[i].hasLocal = nodeLocalOn(l, found[i].node)
			if pools != nil {
				found[i].blocks = pools.ofNode(n.Name)
			}
			found[i].check(ctx, books)
		})
	}
	wg.Wait()
	if l.Ports != nil {
		errs = append(errs, checkPorts(ctx, l)...)
	} else if err := l.Err(); err != nil {
		errs = append(errs, fmt.Errorf("the lab itself: %w", err))
	}
	if l.Egress {
		errs = append(errs, Egress(ctx, l)...)
	}
	if l.NetworkPolicies {
		errs = append(errs, NetworkPolicies(ctx, l, true)...)
	}
	owner := map[netip.Addr]string{}
	for _, f := range found {
		errs = append(errs, f.errs...)
		for _, p := range f.pods {
			for _, a := range p.Addrs {
				if other, taken := owner[a]; taken {
					errs = append(errs, fmt.Errorf("address %s is in both pods %s and %s/%s", a, other, p.Node, p.Name))
				}
				owner[a] = p.Node + "/" + p.Name
			}
		}
	}
	return append(errs, checkENIs(books)...)
}

// Wait repeats Check until it finds nothing. If ctx ends first, it returns the findings of the last check.
func Wait(ctx context.Context, l *lab.Lab) error {
	for began := time.Now(); ; {
		err := errors.Join(Check(ctx, l)...)
		if err == nil || poll.Pause(ctx, began, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// checkENIs looks for leaked ENIs. A branch is released with its trunk. A port may be detached as long as it has a
// PodNIC, which checkCloud verifies.
func checkENIs(books vpc.Snapshot) (errs []error) {
	for _, e := range books.ENIs {
		switch {
		case e.Trunk != nil, e.Attachment == nil && portcloud.IsBerths(e):
			continue
		case e.Attachment == nil:
			errs = append(errs, fmt.Errorf("ENI %s (%s) is leaked: not attached", e.ID, e.Description))
			continue
		}
		i, ok := books.Instance(e.Attachment.InstanceID)
		if !ok || i.State == vpc.Terminated {
			errs = append(errs, fmt.Errorf("ENI %s is leaked: attached to %s, which is gone", e.ID, e.Attachment.InstanceID))
		}
	}
	return errs
}

// findings is the check of one node, with the violations found.
type findings struct {
	node     *node.Node
	mode     lab.Mode
	families ipfamily.Set
	network  *v1alpha1.NodeNetwork   // in operator mode; nil if missing
	blocks   []v1alpha1.AddressBlock // in pool mode
	pods     []*node.Pod
	routed   map[string]bool          // UIDs of pods whose first interface is a branch
	local    map[netip.Addr]*node.Pod // pods by node-local address

	// localFamily is the family of the node-local address that each pod has if hasLocal.
	localFamily ipfamily.Family
	hasLocal    bool
	enis        []vpc.ENI // attached in EC2
	errs        []error
}

func (f *findings) wrong(format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("node "+f.node.Name+": "+format, args...))
}

func (f *findings) check(ctx context.Context, books vpc.Snapshot) {
	f.pods = f.node.Pods()
	for _, e := range books.InstanceENIs(f.node.InstanceID) {
		if e.Attachment.Status == vpc.Attached {
			f.enis = append(f.enis, e)
		}
	}
	k, err := observeKernel(f.node.Netns)
	if err != nil {
		f.wrong("read its kernel state: %w", err)
		return
	}
	held := f.checkPods(k)
	f.checkKernel(k, held)
	f.checkExport(k)
	f.checkRecords(held)
	f.checkDocument(ctx, held)
}

// checkPods compares every pod with the host's side, and returns the pods' addresses.
func (f *findings) checkPods(k kernelState) map[netip.Addr]*node.Pod {
	held := map[netip.Addr]*node.Pod{}
	for _, p := range f.pods {
		s, err := observePod(p.Netns())
		if err != nil {
			f.wrong("pod %s: %w", p.Name, err)
			continue
		}
		slices.SortFunc(s.addrs, netip.Addr.Compare)
		s.addrs = f.takeNodeLocal(k, p, s)
		if want := slices.SortedFunc(slices.Values(p.Addrs), netip.Addr.Compare); !slices.Equal(s.addrs, want) {
			f.wrong("pod %s has %v on eth0, but ADD returned %v", p.Name, s.addrs, want)
		}
		if k.links[s.peer] == "" {
			f.wrong("pod %s has no link on the node", p.Name)
		}
		if f.routed[p.UID] {
			f.checkRoutedPod(k, p, s)
			continue
		}
		for _, a := range s.addrs {
			held[a] = p
			if i, ok := k.routes[a]; !ok || i != s.peer {
				f.wrong("pod %s: the route to %s leads to link %d, want %d", p.Name, a, i, s.peer)
			}
			if link, ok := k.addrs[a]; ok {
				f.wrong("pod %s has %s, which the node also has on %s", p.Name, a, link)
			}
			if !f.owns(a) {
				f.wrong("pod %s has %s, which belongs to no ENI and no block of this node", p.Name, a)
			}
		}
		delete(k.links, s.peer)
		f.checkFamilies(p, s.addrs)
	}
	return held
}

// owns reports whether the node may assign an address to pods.
func (f *findings) owns(a netip.Addr) bool {
	return f.inBlock(a) || slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return f.forPods(e, a) })
}

// forPods reports whether an address of an ENI is for pods: neither the ENI's own nor the instance's, which
// includes the single IPv6 addresses of the primary ENI.
func (f *findings) forPods(e vpc.ENI, a netip.Addr) bool {
	switch {
	case !e.Owns(a):
		return false
	case a == e.Primary:
		return f.usesPrimaryOf(e)
	}
	return !e.Attachment.Primary() || !slices.Contains(e.IPv6, a)
}

// usesPrimaryOf reports whether pods may use an ENI's own address.
func (f *findings) usesPrimaryOf(e vpc.ENI) bool {
	return f.network != nil && f.network.EffectiveENI().PrimaryAddresses() && e.Attachment.DeviceIndex > 0
}

// checkKernel looks for leaked state. The links of pods have been removed from k.
func (f *findings) checkKernel(k kernelState, held map[netip.Addr]*node.Pod) {
	for _, name := range k.links {
		f.wrong("link %s is leaked: no pod has it", name)
	}
	for a := range k.routes {
		if held[a] == nil && f.local[a] == nil {
			f.wrong("the route to %s is leaked: no pod has the address", a)
		}
	}
	for _, r := range k.oddRoutes {
		f.wrong("route %s does not belong in the pod table", r)
	}
	attached := func(index int) bool {
		return slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return e.Attachment.DeviceIndex == index })
	}
	for i := range k.tables {
		if !attached(i) {
			f.wrong("the table of ENI %d is leaked: no ENI is attached there", i)
		}
	}
	for r, n := range k.rules {
		if n > 1 {
			f.wrong("rule %q exists %d times", r, n)
		}
		if i, ok := k.ruleIndex[r]; ok && !attached(i) {
			f.wrong("rule %q is leaked: no ENI %d is attached", r, i)
		}
	}
}

// checkRecords compares the records on disk with the pods.
func (f *findings) checkRecords(held map[netip.Addr]*node.Pod) {
	r, err := readRecords(f.node.StateDir())
	if err != nil {
		f.wrong("read its records: %w", err)
		return
	}
	for _, name := range r.odd {
		f.wrong("unexpected record file %s", name)
	}
	recorded := map[string]bool{}
	for _, rec := range r.attachments {
		recorded[rec.Key.ContainerID] = true
		for _, a := range rec.Lease.Held() {
			if p := cmp.Or(held[a], f.local[a]); p == nil || p.ContainerID != rec.Key.ContainerID {
				f.wrong("the record of %s (%s) holds %s, which that pod does not have", rec.Key, rec.State, a)
			}
		}
	}
	for _, p := range f.pods {
		if !recorded[p.ContainerID] {
			f.wrong("pod %s has no record", p.Name)
		}
	}
	for _, c := range r.cooling {
		if p := cmp.Or(held[c.Addr], f.local[c.Addr]); p != nil {
			f.wrong("%s is recorded as cooling but is in pod %s", c.Addr, p.Name)
		}
	}
}

// checkDocument compares introspection with the pods and with EC2.
func (f *findings) checkDocument(ctx context.Context, held map[netip.Addr]*node.Pod) {
	doc, err := lab.Document(ctx, f.node)
	if err != nil {
		f.wrong("introspection: %w", err)
		return
	}
	allocated := 0
	for _, a := range doc.Allocated {
		for _, addr := range []netip.Addr{a.Address, a.IPv6} {
			if !addr.IsValid() {
				continue
			}
			allocated++
			if p := held[addr]; p == nil || p.ContainerID != a.ContainerID {
				f.wrong("introspection: %s is allocated to %s/%s, which does not have it", addr, a.Namespace, a.Pod)
			}
		}
	}
	if allocated != len(held) {
		f.wrong("introspection: %d addresses are allocated, but pods have %d", allocated, len(held))
	}
	for _, a := range doc.Available {
		f.checkSpare(a.Address, "available", held)
	}
	for _, a := range doc.Cooling {
		f.checkSpare(a.Address, "cooling", held)
	}
	switch f.mode {
	case lab.PoolMode:
		f.checkPools(doc, held)
	case lab.OperatorMode:
		f.checkTotals(doc)
		f.checkNetwork(doc, held)
	default:
		f.checkTotals(doc)
	}
}

func (f *findings) checkSpare(a netip.Addr, state string, held map[netip.Addr]*node.Pod) {
	if p := held[a]; p != nil {
		f.wrong("introspection: %s is %s, but in pod %s", a, state, p.Name)
	}
	if !f.inBlock(a) && !slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return e.Owns(a) }) {
		f.wrong("introspection: %s is %s, but belongs to no ENI and no block of this node", a, state)
	}
}

// busyOf returns the number of an ENI's used and cooling addresses. It applies to ENIs that serve no new pods, whose
// other addresses do not count.
func busyOf(doc introspect.Document, e vpc.ENI) (n int) {
	for _, a := range doc.Allocated {
		if e.Owns(a.Address) {
			n++
		}
	}
	for _, a := range doc.Cooling {
		if e.Owns(a.Address) {
			n++
		}
	}
	return n
}

// checkTotals compares the numbers of addresses that Berth reports with EC2, for IPv4 only: the addresses of a /80
// are not counted.
func (f *findings) checkTotals(doc introspect.Document) {
	t := doc.Totals
	known := t.Allocated + t.Available + t.Cooling + t.NotReady + t.Withdrawn
	assigned := 0
	for _, e := range f.enis {
		i := slices.IndexFunc(doc.ENIs, func(d introspect.ENI) bool { return d.ID == e.ID })
		switch {
		case i < 0:
		case doc.ENIs[i].Capacity == 0:
			assigned += busyOf(doc, e)
		default:
			assigned += len(e.Secondary) + 16*len(e.Prefixes)
			if f.usesPrimaryOf(e) {
				assigned++
			}
		}
	}
	if known != assigned && !f.families.Has(ipfamily.IPv6) {
		f.wrong("introspection: %d addresses in total (%+v), but EC2 has assigned %d", known, t, assigned)
	}
	for _, d := range doc.ENIs {
		if !slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return e.ID == d.ID }) {
			f.wrong("introspection: ENI %s is not attached to this node", d.ID)
		}
	}
}
