// Package vlan plugs ports that are VLANs (IEEE 802.1Q) on a link of the node, the trunk. Each VLAN
// has the MAC address of its port. EC2 gives branch interfaces on a trunk ENI to an instance in
// this way (EC2 API Reference, AssociateTrunkInterface).
//
// The VLAN link is created in the pod's network namespace, so its packets bypass the node's network
// stack and cannot reach the node's addresses. Packets of a pod leave the trunk unchanged. The
// kernel's IP stack drops frames whose VLAN has no link (PACKET_OTHERHOST). tc, packet sockets and
// netfilter's netdev family on the trunk itself see the frames of all VLANs. Untagged frames belong
// to the node.
//
// A VLAN of a trunk has at most one link across all namespaces: the kernel refuses a second one.
// The kernel removes the link together with the pod's namespace or with the trunk.
//
//	trunk.go   finding the trunk, waiting for it, setting it up
//	link.go    creating, labelling, renaming, replacing and removing VLAN links
//	spaces.go  searching namespaces for VLAN links and their owners
//	node.go    VLAN links that stay on the node (package routedvlan)
package vlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var _ = failpoint.Register("plug.vlan.trunk.after", "plug.vlan.made.after", "plug.vlan.mark.after", "plug.vlan.name.after",
	"plug.vlan.pod.after", "plug.vlan.handover.after", "plug.vlan.remove.before", "plug.vlan.remove.after")

// Limits for the wait for the trunk. The link of an ENI appears some seconds after EC2's reply.
const (
	DefaultWait = 30 * time.Second
	MaxWait     = time.Minute
	// briefly is the longest that Plug waits: its caller holds the lock of the pod. Expect waits
	// for Options.Wait.
	briefly = 3 * time.Second
)

// Options of New.
type Options struct {
	Netns   string        // path of the node's network namespace; empty: that of the calling thread
	Dir     string        // where network namespaces of pods are mounted; empty: /run/netns
	Wait    time.Duration // for the trunk; 0: DefaultWait, at most MaxWait
	Sysctls string        // the sysctl folder; empty: /proc/sys
}

// Plugger plugs ports of kind VLAN.
type Plugger struct {
	node   *hostlink.Node
	trunks trunks
	spaces spaces
	wait   time.Duration
}

// New makes a Plugger. Close releases it.
func New(o Options) (*Plugger, error) {
	if o.Wait < 0 || o.Wait > MaxWait {
		return nil, fmt.Errorf("Wait: %s: want 0 to %s", o.Wait, MaxWait)
	}
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return nil, err
	}
	node.Sysctls = o.Sysctls
	return &Plugger{
		node: node, trunks: trunks{node: node}, wait: cmp.Or(o.Wait, DefaultWait),
		spaces: spaces{node: node, dir: cmp.Or(o.Dir, "/run/netns")},
	}, nil
}

// Close releases the handles of the node's namespace. Ports stay plugged.
func (p *Plugger) Close() { p.node.Close() }

// Expect implements plug.Plugger: it waits for the trunk.
func (p *Plugger) Expect(ctx context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return err
	}
	return p.ExpectTrunk(ctx, w.Ref)
}

// ExpectTrunk waits up to Options.Wait for the trunk of a port. Errors: plug.ErrInvalid,
// plug.ErrNotReady.
func (p *Plugger) ExpectTrunk(ctx context.Context, r plug.Ref) error {
	if _, err := p.trunks.await(ctx, r, p.wait); err != nil {
		return fmt.Errorf("wait for port %s: %w", r.PortID, err)
	}
	return nil
}

// Plug implements plug.Plugger. It replaces a link of the port that has another VLAN or is on
// another trunk. It waits briefly for the trunk.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return plug.Done{}, err
	}
	return w.Plugged(p.plug(ctx, w))
}

func (p *Plugger) plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	pod, leave, err := p.spaces.enter(ctx, w.Pod)
	if err != nil {
		return plug.Done{}, err
	}
	defer leave()
	l, err := p.make(ctx, w, inPod(pod, w), p.briefly())
	if err != nil {
		return plug.Done{}, err
	}
	done := plug.Done{MTU: cmp.Or(w.Interface.MTU, l.MTU)}
	if handedOver(l) { // the VM runtime has configured it
		return done, nil
	}
	if l.Name != w.Pod.IfName {
		return plug.Done{}, fmt.Errorf("%w: the port is in the pod as %s; a container of the pod may have renamed it", plug.ErrInterfaceExists, l.Name)
	}
	if err := pod.Configure(w.Pod.IfName, w.Interface); err != nil {
		return plug.Done{}, err
	}
	if err := failpoint.Hit("plug.vlan.pod.after"); err != nil {
		return plug.Done{}, err
	}
	if w.Binding == plug.BindingBridge {
		return done, handOver(pod, w.Ref, l)
	}
	return done, nil
}

// briefly is how long Plug waits for a change that is about to happen.
func (p *Plugger) briefly() time.Duration { return min(p.wait, briefly) }

// make waits for the trunk for at most most, sets it up, and ensures the link of the port.
func (p *Plugger) make(ctx context.Context, w plug.Want, at place, most time.Duration) (*netlink.Vlan, error) {
	trunk, err := p.trunks.await(ctx, w.Ref, most)
	if err != nil {
		return nil, err
	}
	if err := p.trunks.raise(ctx, trunk, w.Interface.MTU); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("plug.vlan.trunk.after"); err != nil {
		return nil, err
	}
	return p.ensure(ctx, w, at, trunk)
}

// handedOver reports whether a VM runtime owns a link.
func handedOver(l *netlink.Vlan) bool { return strings.HasSuffix(l.Alias, hostlink.HandedOver) }

// handOver records in the alias that a link is complete and belongs to the VM runtime from now on.
func handOver(pod *podif.Namespace, r plug.Ref, l *netlink.Vlan) error {
	if err := pod.NL.LinkSetAlias(rtnl.LinkRef(l.Index), r.Mark()+hostlink.HandedOver); err != nil {
		return fmt.Errorf("set the alias of %s in %s to handed over: %w", l.Name, pod.Path, err)
	}
	return failpoint.Hit("plug.vlan.handover.after")
}

// Await implements plug.Plugger. It returns at once: a VLAN works as soon as the provider has
// announced it.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger. The kernel has removed the link if the namespace is gone.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	pod, leave, err := p.spaces.enter(ctx, r.Pod)
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return nil
	case err != nil:
		return r.Unplugged(err)
	}
	defer leave()
	return r.Unplugged(clean(pod, r))
}

// Check implements plug.Plugger.
func (p *Plugger) Check(_ context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
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
	if err := p.trunks.check(w.Ref, found); err != nil {
		return err
	}
	in, err := look(pod, w.Ref)
	if err != nil {
		return err
	}
	if len(in.mine) == 0 {
		found.Add("the pod lacks the port's link")
	}
	for _, l := range in.mine {
		if l.Name != w.Pod.IfName && w.Binding != plug.BindingBridge {
			found.Add("the port's link has the name %s in the pod, not %s", l.Name, w.Pod.IfName)
		}
		if err := p.checkLink(w, l, inPod(pod, w), found); err != nil {
			return err
		}
	}
	if w.Binding == plug.BindingBridge {
		return nil
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}

// checkLink adds the differences of the VLAN link, except its name and the settings that podif
// checks.
func (p *Plugger) checkLink(w plug.Want, l *netlink.Vlan, at place, found *plug.Differences) error {
	if l.VlanId != w.VLAN {
		found.Add("%s has VLAN %d%s, not %d", l.Name, l.VlanId, at.text(), w.VLAN)
	}
	parent, err := p.trunks.parent(l, at)
	if err != nil {
		return err
	}
	switch {
	case parent == nil:
		found.Add("%s has no parent on the node, not the one with MAC address %s", l.Name, w.Trunk)
	case !sameMAC(parent.HardwareAddr, w.Trunk):
		found.Add("%s has the parent %s with MAC address %s, not the one with %s", l.Name, parent.Name, parent.HardwareAddr, w.Trunk)
	}
	return nil
}

// List implements plug.Plugger for links in the folder of pods' namespaces and on the node. It
// skips links on the trunks of other nodes, whose pods may have their namespaces in the same
// folder.
func (p *Plugger) List(ctx context.Context) ([]plug.Found, error) {
	var list []plug.Found
	err := p.spaces.each(ctx, func(s *podif.Namespace) (more bool, err error) {
		in, err := look(s, plug.Ref{})
		if err != nil {
			return false, err
		}
		node, err := p.spaces.nodeIn(s)
		if err != nil {
			return false, err
		}
		there := slices.DeleteFunc(append(in.others, in.incomplete...), func(v *netlink.Vlan) bool { return v.NetNsID != node })
		where := plug.Pod{}
		if s.Path != nodePath && len(there) > 0 {
			where.Netns = s.Path
			if where.NetnsID, err = rtnl.Identify(s.NS); err != nil {
				return false, fmt.Errorf("%s: %w", s.Path, err)
			}
		}
		for _, l := range there {
			r, ok := plug.ParseMark(l.Alias)
			r.Kind, r.VLAN = plug.VLAN, l.VlanId
			r.Pod.Netns, r.Pod.NetnsID = where.Netns, where.NetnsID
			list = append(list, plug.Found{Ref: r, HalfMade: !ok, Link: l.Name})
		}
		return true, nil
	})
	slices.SortStableFunc(list, plug.Found.Compare)
	return list, err
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	var s *podif.Namespace
	var leave func()
	var err error
	if f.Pod.Netns == "" {
		s = p.spaces.home()
		leave, err = p.spaces.turn(ctx, s)
	} else {
		s, leave, err = p.spaces.enter(ctx, f.Pod)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return nil
	case err != nil:
		return err
	}
	defer leave()
	return clean(s, f.Ref)
}

var _ plug.Plugger = (*Plugger)(nil)
