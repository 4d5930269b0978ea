// Package routedvlan plugs ports that are VLANs on a link of the node, like package vlan, but keeps the VLAN link on the
// node, which routes between it and the pod. So pods have the features of pods with ENI addresses (Services, node ports,
// host ports, the kubelet's probes), and a pod's first interface can be an EC2 branch interface.
//
//	pod's interface = bth… (veth) ~ the node's routing ~ vl… (VLAN on the trunk)
//
// The mode (plug.Enforcing) decides which packets the port's security groups see.
//
// Strict: packets between the pod and its VLAN are routed before the node's local addresses are
// looked up. Packets for the node or for another pod on it leave by the VLAN and return through the
// VPC. Each branch has its own connection tracking zone, because both passes would otherwise belong
// to one connection. Service addresses are translated before the routing decision, so the real
// destination decides.
//
// Standard: the pod is routed like other pods of the node, with its VLAN in place of their ENI.
//
// Only the rules that select the routing table of a pod grow with the number of pods, as policy routing has no other way
// to select it. Packets of other pods are not matched against the rules of mode strict.
//
//	routes.go   routing tables and neighbours
//	rules.go    policy rules, and the position of the kernel's rule for local addresses
//	filter.go   nftables: zones, marks and source addresses
//	settings.go sysctls
package routedvlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/plug/vlan"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var _ = failpoint.Register("plug.routed.vlan.after", "plug.routed.link.after", "plug.routed.filter.after", "plug.routed.rules.after",
	"plug.routed.pod.after", "plug.routed.routes.after", "plug.routed.unplug.link.after", "plug.routed.unplug.rules.after", "plug.routed.unplug.filter.after")

// Options of New.
type Options struct {
	Netns     string        // path of the node's network namespace; empty: that of the calling thread
	VLANs     *vlan.Plugger // manages the VLAN links, in the same namespace
	MarkShift uint          // left shift of the data path's marks (datapath.VPC)
	Sysctls   string        // the sysctl folder; empty: /proc/sys
}

// Plugger plugs ports of kind RoutedVLAN.
type Plugger struct {
	node     *hostlink.Node
	vlans    *vlan.Plugger
	rules    rules
	filter   filter
	routes   routes
	settings settings
	turns    plug.Turns // by the name of a port's veth
}

// New makes a Plugger. Close releases it.
func New(o Options) (*Plugger, error) {
	if o.VLANs == nil {
		return nil, errors.New("VLANs: want a vlan.Plugger")
	}
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return nil, err
	}
	node.Sysctls = o.Sysctls
	return &Plugger{
		node: node, vlans: o.VLANs,
		rules: rules{nl: node.NL, marks: marks(o.MarkShift)}, filter: filter{node.NS, marks(o.MarkShift)},
		routes: routes{node.NL, node.NS}, settings: settings{node},
	}, nil
}

// Close releases the handles of the node's namespace. Ports stay plugged.
func (p *Plugger) Close() { p.node.Close() }

// LinkName is the name of a pod's veth on the node. It has the prefix by which the data path's filters recognize
// pod links, and never equals a name that the data path chooses.
func LinkName(r plug.Ref) string { return datapath.LinkPrefix + r.Short() }

// Expect implements plug.Plugger: it waits for the trunk.
func (p *Plugger) Expect(ctx context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.RoutedVLAN); err != nil {
		return err
	}
	return p.vlans.ExpectTrunk(ctx, w.Ref)
}

// Plug implements plug.Plugger.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := w.ValidateFor(plug.RoutedVLAN); err != nil {
		return plug.Done{}, err
	}
	done, err := p.turns.Take(ctx, LinkName(w.Ref))
	if err != nil {
		return plug.Done{}, err
	}
	defer done()
	return w.Plugged(p.plug(ctx, w))
}

// plug isolates the pod before the pod can send packets, and adds the routes to the pod last.
func (p *Plugger) plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return plug.Done{}, err
	}
	defer pod.Close()
	pod.Sysctls = p.node.Sysctls
	out, err := p.vlans.MakeOnNode(ctx, w)
	if err != nil {
		return plug.Done{}, err
	}
	w.Interface.MTU = cmp.Or(w.Interface.MTU, out.MTU) // default to the MTU of the VLAN
	if err := failpoint.Hit("plug.routed.vlan.after"); err != nil {
		return plug.Done{}, err
	}
	link, err := p.node.ToPod(w, LinkName(w.Ref), pod)
	if err != nil {
		return plug.Done{}, err
	}
	b := branchOf(w)
	ends := ends{pod: link.Index, vlan: out.Index}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"link", func() error { return errors.Join(p.settings.set(b), p.settings.own6(b, out)) }},
		{"filter", func() error { return p.filter.set(b) }},
		{"rules", func() error { return p.rules.set(ctx, b, w.Ref) }},
		{"pod", func() error {
			return errors.Join(p.raise(b, link), p.configure(pod, w, link))
		}},
		{"routes", func() error {
			return errors.Join(p.raise(b, hostlink.Link{Name: out.Name, Index: out.Index}), p.routes.set(b, ends, w.Interface.MAC))
		}},
	} {
		if err := step.do(); err != nil {
			return plug.Done{}, err
		}
		if err := failpoint.Hit("plug.routed." + step.name + ".after"); err != nil {
			return plug.Done{}, err
		}
	}
	return plug.Done{HostIfName: link.Name, HostMAC: link.MAC, MTU: w.Interface.MTU}, nil
}

// branch is a port from the viewpoint of the node's routing.
type branch struct {
	pod       string // name of the veth on the node
	vlan      string // name of the VLAN link
	id        int    // VLAN ID
	hops      []hop  // one for each IP family
	enforcing plug.Enforcing
}

// hop is an address of a port and the router of its subnet.
type hop struct{ addr, gateway netip.Addr }

func (h hop) family() int { return rtnl.FamilyOf(h.addr) }

func branchOf(w plug.Want) branch {
	b := branch{pod: LinkName(w.Ref), vlan: w.VLANLink(), id: w.VLAN, enforcing: w.Enforcing}
	for _, a := range w.Interface.Addresses {
		for _, g := range w.Interface.Gateways {
			if g.Is4() == a.Addr().Is4() {
				b.hops = append(b.hops, hop{a.Addr(), g})
			}
		}
	}
	return b
}

// has reports whether a branch has an address of a family.
func (b branch) has(family int) bool {
	return slices.ContainsFunc(b.hops, func(h hop) bool { return h.family() == family })
}

// podInterface is the interface that the pod sees: its addresses as /32 and /128, and the same gateways as
// in every pod whose packets the node routes.
func podInterface(w plug.Want) plug.Interface {
	i := w.Interface
	i.Addresses, i.Gateways, i.Routes = nil, nil, nil
	for _, a := range w.Interface.Addresses {
		i.Addresses = append(i.Addresses, rtnl.HostPrefix(a.Addr()))
		i.Gateways = append(i.Gateways, datapath.PodGateway(a.Addr()))
	}
	return i
}

// raise sets a link of a branch up. If the branch has no IPv6 address, it turns IPv6 off on the link first.
func (p *Plugger) raise(b branch, l hostlink.Link) error {
	if !b.has(unix.AF_INET6) {
		return p.node.Raise(l)
	}
	if err := p.node.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
		return fmt.Errorf("set %s up: %w", l.Name, err)
	}
	return nil
}

// configure sets up the pod's end. It adds the neighbours before the pod can send packets.
func (p *Plugger) configure(pod *podif.Namespace, w plug.Want, link hostlink.Link) error {
	l, err := pod.NL.LinkByName(w.Pod.IfName)
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", w.Pod.IfName, pod.Path, err)
	}
	if err := pod.Configure(w.Pod.IfName, podInterface(w)); err != nil {
		return err
	}
	for _, g := range podInterface(w).Gateways {
		if err := pod.NL.NeighSet(rtnl.PermanentNeighbour(l.Attrs().Index, g, link.MAC)); err != nil {
			return fmt.Errorf("add neighbour %s in %s: %w", g, pod.Path, err)
		}
	}
	return nil
}

// Await implements plug.Plugger. It returns immediately, as a VLAN works as soon as the provider has announced it.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger. It removes the VLAN link last, because List finds ports by it.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	r.Kind = plug.RoutedVLAN // names depend on the kind
	return p.turns.During(ctx, LinkName(r), func() error { return r.Unplugged(p.unplug(ctx, r)) })
}

func (p *Plugger) unplug(ctx context.Context, r plug.Ref) error {
	if others, err := p.ofOthers(r); err != nil || others {
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"link", func() error {
			p.node.ForgetInPod(r, LinkName(r))
			return p.node.Remove(r, LinkName(r))
		}},
		{"rules", func() error { return p.rules.clear(ctx, r) }},
		{"filter", func() error { return p.filter.remove(r) }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := failpoint.Hit("plug.routed.unplug." + step.name + ".after"); err != nil {
			return err
		}
	}
	return p.vlans.RemoveFromNode(ctx, r)
}

// ofOthers reports whether a link with the port's name on the node belongs to another attachment or port. Then the rules
// and filters with that name do as well.
func (p *Plugger) ofOthers(r plug.Ref) (bool, error) {
	for _, name := range []string{r.VLANLink(), LinkName(r)} {
		l, err := p.node.Find(name)
		if err != nil {
			return false, err
		}
		if l == nil {
			continue
		}
		if owner, _ := r.OwnerOf(l.Attrs()); owner == plug.Others {
			return true, nil
		}
	}
	return false, nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(_ context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.RoutedVLAN); err != nil {
		return err
	}
	return w.Checked(p.check)
}

func (p *Plugger) check(w plug.Want, found *plug.Differences) error {
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return err
	}
	defer pod.Close()
	out, err := p.vlans.CheckOnNode(w, found)
	if err != nil {
		return err
	}
	link, err := p.node.Check(w.Ref, LinkName(w.Ref), found)
	if err != nil {
		return err
	}
	if err := pod.Check(w.Pod.IfName, podInterface(w), found); err != nil {
		return err
	}
	b := branchOf(w)
	if err := p.rules.check(b, found); err != nil {
		return err
	}
	if err := errors.Join(p.filter.check(b, found), p.settings.check(b, found)); err != nil {
		return err
	}
	if out == nil || link == nil {
		return nil
	}
	if err := hostlink.CheckPair(w, link.Attrs(), pod, found); err != nil {
		return err
	}
	if err := p.routes.checkNeighbours(pod, w, link.Attrs(), found); err != nil {
		return err
	}
	if err := p.settings.checkOwn6(b, out, found); err != nil {
		return err
	}
	return p.routes.check(b, ends{pod: link.Attrs().Index, vlan: out.Index}, found)
}

// List implements plug.Plugger.
func (p *Plugger) List(context.Context) ([]plug.Found, error) {
	list, err := p.node.List(plug.RoutedVLAN, datapath.LinkPrefix, plug.VLANPrefix)
	slices.SortStableFunc(list, plug.Found.Compare)
	return list, err
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	if f.HalfMade {
		return p.node.RemoveHalfMade(f.Link)
	}
	return p.Unplug(ctx, f.Ref)
}

// ends are the indexes of a port's links on the node.
type ends struct{ pod, vlan int }

var _ plug.Plugger = (*Plugger)(nil)
