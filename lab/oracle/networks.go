package oracle

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source/nodelocal"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// viewNetworks reads all NodeNetworks, and returns inconsistencies between them.
func viewNetworks(ctx context.Context, l *lab.Lab, nodes []*node.Node) (map[string]*v1alpha1.NodeNetwork, []error) {
	objects, err := l.Kube.NodeNetworks(ctx)
	if err != nil {
		return nil, []error{err}
	}
	return compareNetworks(objects, nodes, func(instanceID string) bool { return exists(l, instanceID) })
}

// compareNetworks returns NodeNetworks by name, and inconsistencies: a NodeNetwork without a running node and
// instance, and an address in two NodeNetworks.
func compareNetworks(objects []v1alpha1.NodeNetwork, nodes []*node.Node, exists func(instanceID string) bool) (map[string]*v1alpha1.NodeNetwork, []error) {
	var errs []error
	byName := map[string]*v1alpha1.NodeNetwork{}
	owner := map[string]string{}
	for i := range objects {
		o := &objects[i]
		byName[o.Name] = o
		if !slices.ContainsFunc(nodes, func(n *node.Node) bool { return n.Name == o.Name }) && !exists(o.Spec.InstanceID) {
			errs = append(errs, fmt.Errorf("NodeNetwork %s still exists, but its instance %s is gone", o.Name, o.Spec.InstanceID))
		}
		for a := range o.Spec.IPAM.Available {
			if other, taken := owner[a]; taken {
				errs = append(errs, fmt.Errorf("%s is available in two NodeNetworks: %s and %s", a, other, o.Name))
			}
			owner[a] = o.Name
		}
	}
	return byName, errs
}

// exists reports whether an instance exists and is not terminated.
func exists(l *lab.Lab, instanceID string) bool {
	i, ok := l.Snapshot().Instance(instanceID)
	return ok && i.State != vpc.ShuttingDown && i.State != vpc.Terminated
}

// checkNetwork compares the NodeNetwork with EC2, the pods and introspection.
func (f *findings) checkNetwork(doc introspect.Document, held map[netip.Addr]*node.Pod) {
	o := f.network
	if o == nil {
		f.wrong("node has no NodeNetwork")
		return
	}
	if o.Spec.InstanceID != f.node.InstanceID {
		f.wrong("NodeNetwork is for instance %s, want %s", o.Spec.InstanceID, f.node.InstanceID)
	}
	f.checkAvailable(o)
	f.checkUsed(o, doc, held)
	for _, a := range o.Spec.IPAM.Releasing {
		if _, ok := o.Spec.IPAM.Available[a]; !ok {
			f.wrong("NodeNetwork: %s is releasing but not available", a)
		}
	}
	for _, a := range o.Status.IPAM.Released {
		if !slices.Contains(o.Spec.IPAM.Releasing, a) {
			f.wrong("NodeNetwork: %s is released but not releasing", a)
		}
	}
}

// checkAvailable compares the available addresses and the ENIs with EC2's.
func (f *findings) checkAvailable(o *v1alpha1.NodeNetwork) {
	available := map[string]string{} // in EC2: address or prefix to ENI
	total := 0
	for _, e := range f.serving(o) {
		known, ok := o.Status.ENI.ENIs[e.ID]
		if !ok {
			f.wrong("NodeNetwork: ENI %s, which EC2 has attached, is not in status.eni", e.ID)
		} else if int(known.DeviceIndex) != e.Attachment.DeviceIndex || known.MAC != e.MAC.String() {
			f.wrong("NodeNetwork: ENI %s is %+v, but EC2 has index %d and MAC %s", e.ID, known, e.Attachment.DeviceIndex, e.MAC)
		}
		things, count := f.availableOf(e, o)
		for _, a := range things {
			available[a] = e.ID
		}
		total += count
	}
	for a, eni := range available {
		if got, ok := o.Spec.IPAM.Available[a]; !ok {
			f.wrong("NodeNetwork: %s, which EC2 has assigned to %s, is not available", a, eni)
		} else if got.Resource != eni {
			f.wrong("NodeNetwork: %s is on %s, but in EC2 on %s", a, got.Resource, eni)
		}
	}
	for a, got := range o.Spec.IPAM.Available {
		if _, ok := available[a]; !ok {
			f.wrong("NodeNetwork: %s is available, but EC2 has not assigned it to %s of this node", a, got.Resource)
		}
	}
	for id := range o.Status.ENI.ENIs {
		if !slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return e.ID == id }) {
			f.wrong("NodeNetwork: ENI %s is in status.eni but not attached", id)
		}
	}
	if int(o.Status.ENI.Available) != total && !f.families.Has(ipfamily.IPv6) { // see checkTotals
		f.wrong("NodeNetwork: status.eni.available is %d, but EC2 has assigned %d", o.Status.ENI.Available, total)
	}
}

// availableOf returns an ENI's addresses and prefixes for pods in the notation of a NodeNetwork, and their number of
// IPv4 addresses. The primary ENI's single IPv6 addresses belong to the instance.
func (f *findings) availableOf(e vpc.ENI, o *v1alpha1.NodeNetwork) (things []string, ipv4 int) {
	addrs, prefixes := e.Secondary, e.Prefixes
	if o.EffectiveENI().PrimaryAddresses() && e.Attachment.DeviceIndex > 0 {
		addrs = append(slices.Clone(addrs), e.Primary)
	}
	ipv4 = len(addrs) + 16*len(prefixes)
	if f.families.Has(ipfamily.IPv6) {
		prefixes = slices.Concat(prefixes, e.IPv6Prefixes)
		if !e.Attachment.Primary() {
			addrs = slices.Concat(addrs, e.IPv6)
		}
	}
	for _, a := range addrs {
		things = append(things, a.String())
	}
	for _, p := range prefixes {
		things = append(things, p.String())
	}
	return things, ipv4
}

// serving returns the attached ENIs whose addresses are for pods.
func (f *findings) serving(o *v1alpha1.NodeNetwork) []vpc.ENI {
	first := 1
	if o.EffectiveENI().FirstInterfaceIndex != nil {
		first = int(*o.EffectiveENI().FirstInterfaceIndex)
	}
	return slices.DeleteFunc(slices.Clone(f.enis), func(e vpc.ENI) bool { return e.Attachment.DeviceIndex < first || e.Type == "trunk" })
}

// checkUsed compares status.ipam with the pods and the cooling addresses.
func (f *findings) checkUsed(o *v1alpha1.NodeNetwork, doc introspect.Document, held map[netip.Addr]*node.Pod) {
	s := o.Status.IPAM
	if s.InstanceID != f.node.InstanceID {
		f.wrong("NodeNetwork: status.ipam is for instance %q, want %s", s.InstanceID, f.node.InstanceID)
	}
	cooling := map[netip.Addr]bool{}
	for _, c := range doc.Cooling {
		cooling[c.Address] = true
	}
	for text, u := range s.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			f.wrong("NodeNetwork: status.ipam.used: %w", err)
			continue
		}
		switch p := held[a]; {
		case u.Cooling && !cooling[a]:
			f.wrong("NodeNetwork: %s is reported as cooling but is not cooling", a)
		case !u.Cooling && (p == nil || p.UID != u.UID):
			f.wrong("NodeNetwork: %s is reported as used by %s (%s), which does not have it", a, u.Owner, u.UID)
		}
	}
	for _, a := range slices.Concat(addrs(held), addrs(cooling)) {
		if _, ok := s.Used[a.String()]; !ok && (a.Is4() || f.families.Has(ipfamily.IPv6)) {
			f.wrong("NodeNetwork: %s is in use or cooling, but not in status.ipam.used", a)
		}
	}
	if want := podsUsing(s.Used); int(s.UsedCount) != want {
		f.wrong("NodeNetwork: status.ipam.usedCount is %d, want %d for %d addresses", s.UsedCount, want, len(s.Used))
	}
}

// podsUsing returns the number of pods that use the given addresses. A dual-stack pod has an address of each family on
// one ENI, so this is the larger of each ENI's IPv4 and IPv6 counts, summed over the ENIs.
func podsUsing(used map[string]v1alpha1.UsedAddress) (pods int) {
	byENI := map[string]*[ipfamily.Number]int{}
	for text, u := range used {
		if byENI[u.Resource] == nil {
			byENI[u.Resource] = &[ipfamily.Number]int{}
		}
		if a, err := netip.ParseAddr(text); err == nil {
			byENI[u.Resource][ipfamily.Of(a)]++
		}
	}
	for _, n := range byENI {
		pods += slices.Max(n[:])
	}
	return pods
}

func addrs[V any](m map[netip.Addr]V) (out []netip.Addr) {
	for a := range m {
		out = append(out, a)
	}
	return out
}

// checkFamilies verifies that a pod with ENI addresses has one of each family of the lab's pods, all on one ENI, because
// the node sends a pod's packets through one uplink. The families of a pool's pods depend on the pool.
func (f *findings) checkFamilies(p *node.Pod, addrs []netip.Addr) {
	if !f.mode.HasEC2() {
		return
	}
	var got [ipfamily.Number]int
	for _, a := range addrs {
		got[ipfamily.Of(a)]++
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		want := 0
		if f.families.Has(family) {
			want = 1
		}
		if got[family] != want {
			f.wrong("pod %s has %d addresses of %s, want %d: %v", p.Name, got[family], family, want, addrs)
		}
	}
	together := func(e vpc.ENI) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !e.Owns(a) })
	}
	if !slices.ContainsFunc(f.enis, together) {
		f.wrong("pod %s has %v, which are not on one ENI of this node", p.Name, addrs)
	}
}

// takeNodeLocal records a pod's node-local address, and returns its other addresses. Node-local addresses are unique on
// a node, but not across nodes.
func (f *findings) takeNodeLocal(k kernelState, p *node.Pod, s podState) (own []netip.Addr) {
	var local []netip.Addr
	for _, a := range s.addrs {
		if !nodelocal.Contains(a) {
			own = append(own, a)
			continue
		}
		local = append(local, a)
		if other := f.local[a]; other != nil {
			f.wrong("node-local address %s is in both pods %s and %s", a, other.Name, p.Name)
		}
		f.local[a] = p
		if i, ok := k.routes[a]; !ok || i != s.peer {
			f.wrong("pod %s: the route to %s leads to link %d, want %d", p.Name, a, i, s.peer)
		}
	}
	has := f.hasLocal && !f.routed[p.UID] // a routed pod only has the addresses of its branch
	switch {
	case has && (len(local) != 1 || ipfamily.Of(local[0]) != f.localFamily):
		f.wrong("pod %s has node-local addresses %v, want one of %s", p.Name, local, f.localFamily)
	case !has && len(local) > 0:
		f.wrong("pod %s has node-local addresses %v, want none", p.Name, local)
	}
	return own
}
