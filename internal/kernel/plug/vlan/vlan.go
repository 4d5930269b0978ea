// Package vlan plugs ports that are VLANs on a link of the node's, its trunk: what the
// trunk's link carries with a VLAN's ID (IEEE 802.1Q) is the port's, and has the port's own MAC
// address. So EC2 gives an instance branch interfaces on a trunk ENI (EC2 API Reference,
// AssociateTrunkInterface).
//
// The VLAN's link is made in the pod's network namespace: no packet of it passes the node's
// network stack, and no address of the node can be reached by it.
// What a pod sends leaves by the trunk's link as it is. What comes for a VLAN that is in no pod
// is for nobody: the kernel's IP takes no frame that has the ID of a VLAN without a link
// (PACKET_OTHERHOST). What tc, packet sockets and netfilter's netdev family do with the trunk's link
// itself sees frames of all VLANs. What comes without a VLAN stays the node's own.
//
// A VLAN of a trunk has one link, whatever namespace that is in: the kernel refuses a second one.
// When the pod's namespace goes the kernel removes the link, and so when the trunk's goes.
//
//	trunk.go   the trunk's link: which it is, waiting for it, setting it up
//	link.go    the VLAN's link: made, marked, named, replaced, removed
//	spaces.go  the namespaces in which links may be, who has a VLAN, what is of nobody
package vlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
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

// Limits of how long the trunk's link is waited for. An ENI's link comes some seconds after
// EC2's answer.
const (
	DefaultWait = 30 * time.Second
	MaxWait     = time.Minute
	// briefly is how long Plug itself waits at most: who calls it holds the pod's lock, and
	// has the kernel's time only. Expect waits as long as was told.
	briefly = 3 * time.Second
)

// Options of New.
type Options struct {
	Netns   string        // path of the node's network namespace; empty: the calling thread's
	Dir     string        // where pods' network namespaces are mounted; empty: /run/netns
	Wait    time.Duration // for the trunk's link; 0: DefaultWait, at most MaxWait
	Sysctls string        // the folder of the kernel's settings; empty: /proc/sys
}

// Plugger plugs ports of kind VLAN.
type Plugger struct {
	node  *hostlink.Node
	dir   string
	wait  time.Duration
	turns plug.Turns // by namespace, so that what is half made in one is no other call's; and by trunk
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
	return &Plugger{node: node, dir: cmp.Or(o.Dir, "/run/netns"), wait: cmp.Or(o.Wait, DefaultWait)}, nil
}

// Close releases the node's namespace; ports stay as they are.
func (p *Plugger) Close() { p.node.Close() }

// Expect implements plug.Plugger: it waits for the trunk's link.
func (p *Plugger) Expect(ctx context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return err
	}
	return p.ExpectTrunk(ctx, w.Ref)
}

// ExpectTrunk returns once the node has a port's trunk, and waits for it as long as an ADD may.
// Errors: plug.ErrInvalid, plug.ErrNotReady.
func (p *Plugger) ExpectTrunk(ctx context.Context, r plug.Ref) error {
	if _, err := p.await(ctx, r, p.wait); err != nil {
		return fmt.Errorf("wait for port %s: %w", r.PortID, err)
	}
	return nil
}

// Plug implements plug.Plugger. A link of the port that is another VLAN's, or on another
// trunk, makes place for the one that is wanted. It waits for the trunk's link too, but briefly.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return plug.Done{}, err
	}
	d, err := p.plug(ctx, w)
	if err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	return d, nil
}

func (p *Plugger) plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	pod, leave, err := p.enter(ctx, w.Pod)
	if err != nil {
		return plug.Done{}, err
	}
	defer leave()
	l, err := p.make(ctx, w, inPod(pod, w), p.briefly())
	if err != nil {
		return plug.Done{}, err
	}
	done := plug.Done{MTU: cmp.Or(w.Interface.MTU, l.MTU)}
	if handedOver(l) { // as it is set up by the machine's runtime
		return done, nil
	}
	if l.Name != w.Pod.IfName {
		return plug.Done{}, fmt.Errorf("%w: the port is in the pod as %s, which a container of the pod may have named so", plug.ErrInterfaceExists, l.Name)
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

// briefly is how long Plug waits for what may come in a moment.
func (p *Plugger) briefly() time.Duration { return min(p.wait, briefly) }

// make sets the trunk up, which it waits for so long at most, and makes the port's link in its place.
func (p *Plugger) make(ctx context.Context, w plug.Want, at place, most time.Duration) (*netlink.Vlan, error) {
	trunk, err := p.await(ctx, w.Ref, most)
	if err != nil {
		return nil, err
	}
	if err := p.raise(ctx, trunk, w.Interface.MTU); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("plug.vlan.trunk.after"); err != nil {
		return nil, err
	}
	return p.ensure(ctx, w, at, trunk)
}

// enter opens a pod's namespace and waits for its turn there.
func (p *Plugger) enter(ctx context.Context, where plug.Pod) (pod *podif.Namespace, leave func(), err error) {
	pod, err = podif.OpenPod(where, p.node.ID)
	if err != nil {
		return nil, nil, err
	}
	pod.Sysctls = p.node.Sysctls
	done, err := p.turn(ctx, pod)
	if err != nil {
		pod.Close()
		return nil, nil, err
	}
	return pod, func() { done(); pod.Close() }, nil
}

// turn waits for the turn in a namespace, whatever path it is known by.
func (p *Plugger) turn(ctx context.Context, s *podif.Namespace) (done func(), err error) {
	id, err := rtnl.Identify(s.NS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return p.turns.Take(ctx, fmt.Sprintf("network namespace %d:%d", id.Dev, id.Inode))
}

// handedOver tells whether a link is a machine's runtime's by now.
func handedOver(l *netlink.Vlan) bool { return strings.HasSuffix(l.Alias, hostlink.HandedOver) }

// handOver notes that a link is complete, and a machine's runtime's from now on.
func handOver(pod *podif.Namespace, r plug.Ref, l *netlink.Vlan) error {
	if err := pod.NL.LinkSetAlias(rtnl.LinkRef(l.Index), r.Mark()+hostlink.HandedOver); err != nil {
		return fmt.Errorf("mark %s in %s as handed over: %w", l.Name, pod.Path, err)
	}
	return failpoint.Hit("plug.vlan.handover.after")
}

// Await implements plug.Plugger: a VLAN that the provider has told of works, and nothing on the
// node knows better.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger. With a namespace that is gone the link is, too.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	pod, leave, err := p.enter(ctx, r.Pod)
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return nil
	case err != nil:
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	defer leave()
	if err := clean(pod, r); err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(_ context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
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
	if err := p.checkTrunk(w.Ref, found); err != nil {
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
			found.Add("the port's link is called %s in the pod, not %s", l.Name, w.Pod.IfName)
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

// checkTrunk notes what is wrong with a port's trunk.
func (p *Plugger) checkTrunk(r plug.Ref, found *plug.Differences) error {
	trunk, err := p.find(r)
	switch {
	case errors.Is(err, plug.ErrInvalid):
		found.Add("%v", err)
	case err != nil:
		return err
	case trunk == nil:
		found.Add("no link of the node has the trunk's MAC address %s", r.Trunk)
	case trunk.Flags&net.FlagUp == 0:
		found.Add("the trunk %s is down", trunk.Name)
	}
	return nil
}

// checkLink notes how the port's link differs from what is wanted, but for its name and what podif
// sets.
func (p *Plugger) checkLink(w plug.Want, l *netlink.Vlan, at place, found *plug.Differences) error {
	if l.VlanId != w.VLAN {
		found.Add("%s has VLAN %d%s, not %d", l.Name, l.VlanId, at.text(), w.VLAN)
	}
	parent, err := p.parent(l, at)
	if err != nil {
		return err
	}
	switch {
	case parent == nil:
		found.Add("%s is on no link of the node's, not on that with MAC address %s", l.Name, w.Trunk)
	case !sameMAC(parent.HardwareAddr, w.Trunk):
		found.Add("%s is on %s of the node with MAC address %s, not on that with %s", l.Name, parent.Name, parent.HardwareAddr, w.Trunk)
	}
	return nil
}

var _ plug.Plugger = (*Plugger)(nil)
