// Package routedvlan plugs ports that are VLANs on a link of the node's, as package vlan does, with
// the VLAN's link on the node: the node routes between it and the pod. So the pod has what nodes do for
// pods with addresses of ENIs (Services, node ports, host ports, the kubelet's probes), and a pod's
// first interface can be a branch interface of EC2.
//
//	pod's interface = bth… (veth) ~ the node's routing ~ vl… (VLAN on the trunk)
//
// On what the security groups of the port are enforced is a mode (plug.Enforcing).
//
// Strict: the pod and its VLAN are a world of their own. What comes from the one is routed to the other
// before the node's own addresses are looked up, so that what is for the node itself, or for another
// pod on it, goes out by the VLAN too and comes back by the VPC. Connection tracking would
// take both passes for one connection: it has a zone for each branch. A Service's address is translated
// before the routing, so it is judged by where the packet really goes.
//
// Standard: the pod is routed as others on the node are, and its VLAN stands in the place of its ENI.
//
// Rules whose number grows with the pods are those that lead from a pod to its table: policy routing cannot
// tell the pod otherwise. No packet of other pods is held against those of mode strict.
//
//	routes.go   the routing tables and neighbours
//	rules.go    the policy rules, and the place of the kernel's own rule of local addresses
//	filter.go   nftables: zones, marks, and sources
//	settings.go the kernel's settings
package routedvlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
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
	Netns     string        // path of the node's network namespace; empty: the calling thread's
	VLANs     *vlan.Plugger // makes the VLANs' links, in the same namespace
	MarkShift uint          // how far the data path moves its marks left (datapath.VPC)
	Sysctls   string        // the folder of the kernel's settings; empty: /proc/sys
}

// Plugger plugs ports of kind RoutedVLAN.
type Plugger struct {
	node  *hostlink.Node
	vlans *vlan.Plugger
	shift uint
	turns plug.Turns // by the name of a port's veth, and one for what all ports share
}

// New makes a Plugger. Close releases it.
func New(o Options) (*Plugger, error) {
	if o.VLANs == nil {
		return nil, errors.New("VLANs: want what makes the links of VLANs")
	}
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return nil, err
	}
	node.Sysctls = o.Sysctls
	return &Plugger{node: node, vlans: o.VLANs, shift: o.MarkShift}, nil
}

// Close releases the node's namespace; ports stay as they are.
func (p *Plugger) Close() { p.node.Close() }

// LinkName is what the veth to a port's pod is called on the node. It begins as those of pods do whose
// packets the data path judges, and is none of the names that it gives itself.
func LinkName(r plug.Ref) string { return datapath.LinkPrefix + r.Short() }

// Expect implements plug.Plugger: it waits for the trunk's link.
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
	d, err := p.plug(ctx, w)
	if err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	return d, nil
}

// plug sets up what keeps the pod's packets apart before the pod can send any, and what leads to the
// pod last.
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
	w.Interface.MTU = cmp.Or(w.Interface.MTU, out.MTU) // as the VLAN's, where nobody says
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
		{"link", func() error { return errors.Join(p.set(b), p.own6(b, out)) }},
		{"filter", func() error { return p.filter(b) }},
		{"rules", func() error { return p.lead(ctx, b, w.Ref) }},
		{"pod", func() error {
			return errors.Join(p.raise(b, link), p.configure(pod, w, link))
		}},
		{"routes", func() error {
			return errors.Join(p.raise(b, hostlink.Link{Name: out.Name, Index: out.Index}), p.route(b, ends, w.Interface.MAC))
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

// branch is a port as the node routes it.
type branch struct {
	pod       string // the veth's name on the node
	vlan      string // the name of the VLAN's link
	id        int    // the VLAN's
	hops      []hop  // one of each family
	enforcing plug.Enforcing
}

// hop is an address of a port's and the router of its subnet.
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

// has tells whether a branch has an address of a family.
func (b branch) has(family int) bool {
	return slices.ContainsFunc(b.hops, func(h hop) bool { return h.family() == family })
}

// inside is what the pod sees: addresses without neighbours. Its gateways are those of all pods that the
// node routes to.
func inside(w plug.Want) plug.Interface {
	i := w.Interface
	i.Addresses, i.Gateways, i.Routes = nil, nil, nil
	for _, a := range w.Interface.Addresses {
		i.Addresses = append(i.Addresses, rtnl.HostPrefix(a.Addr()))
		i.Gateways = append(i.Gateways, datapath.PodGateway(a.Addr()))
	}
	return i
}

// raise sets a link of a branch's up. Without addresses of IPv6 the node takes no part in that there.
func (p *Plugger) raise(b branch, l hostlink.Link) error {
	if !b.has(unix.AF_INET6) {
		return p.node.Raise(l)
	}
	if err := p.node.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
		return fmt.Errorf("set %s up: %w", l.Name, err)
	}
	return nil
}

// configure sets the pod's end up. The neighbours come before anything can be sent.
func (p *Plugger) configure(pod *podif.Namespace, w plug.Want, link hostlink.Link) error {
	l, err := pod.NL.LinkByName(w.Pod.IfName)
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", w.Pod.IfName, pod.Path, err)
	}
	if err := pod.Configure(w.Pod.IfName, inside(w)); err != nil {
		return err
	}
	for _, g := range inside(w).Gateways {
		if err := pod.NL.NeighSet(neighbour(l.Attrs().Index, g, link.MAC)); err != nil {
			return fmt.Errorf("add neighbour %s in %s: %w", g, pod.Path, err)
		}
	}
	return nil
}

// Await implements plug.Plugger: a VLAN that the provider has told of works, and nothing on the
// node knows better.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger. The VLAN's link goes last: by it List finds a port.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	r.Kind = plug.RoutedVLAN // names are made by it
	done, err := p.turns.Take(ctx, LinkName(r))
	if err != nil {
		return err
	}
	defer done()
	if err := p.unplug(ctx, r); err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
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
		{"rules", func() error { return p.leadNoMore(ctx, r) }},
		{"filter", func() error { return p.unfilter(r) }},
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

// ofOthers tells whether a link of the port's name on the node is another attachment's or port's: then
// rules and filters of that name are, too.
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
	var found plug.Differences
	if err := p.check(w, &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
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
	if err := pod.Check(w.Pod.IfName, inside(w), found); err != nil {
		return err
	}
	b := branchOf(w)
	if err := p.checkRules(b, found); err != nil {
		return err
	}
	if err := errors.Join(p.checkFilter(b, found), p.checkSettings(b, found)); err != nil {
		return err
	}
	if out == nil || link == nil {
		return nil
	}
	if err := hostlink.CheckPair(w, link.Attrs(), pod, found); err != nil {
		return err
	}
	if err := p.checkNeighbours(pod, w, link.Attrs(), found); err != nil {
		return err
	}
	if err := p.checkOwn6(b, out, found); err != nil {
		return err
	}
	return p.checkRoutes(b, ends{pod: link.Attrs().Index, vlan: out.Index}, found)
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

func neighbour(link int, addr netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: link, Family: rtnl.FamilyOf(addr), State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac,
	}
}

var _ plug.Plugger = (*Plugger)(nil)
