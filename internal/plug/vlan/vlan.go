// Package vlan plugs ports that are VLANs on a link of the node's (IEEE 802.1Q): EC2's branch
// interfaces, which the instance's trunk carries. The VLAN's link is made in the pod, in one
// request, with the pod's name for it and the port's MAC address:
//
//	pod's interface (VLAN 17) - trunk's link on the node - VPC
//
// Its packets pass neither the node's IP stack nor its netfilter. What the trunk brings with the
// tag of a VLAN that no pod has is dropped by the kernel, which has no link for it. The link
// goes with the pod's namespace.
//
//	vlan.go   Plugger
//	trunk.go  which link of the node's is the trunk
//	pod.go    the VLAN's link in the pod
package vlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hostlink"
	"github.com/berthnet/berth/internal/plug/podif"
)

var _ = failpoint.Register("plug.vlan.made.after", "plug.vlan.marked.after", "plug.vlan.pod.after",
	"plug.vlan.removed.before", "plug.vlan.removed.after")

// DefaultWait is how long Expect waits for the trunk's link, which comes some seconds after EC2 said
// that the trunk is attached.
const DefaultWait = 10 * time.Second

// Options of New. The zero value is right on a node.
type Options struct {
	Netns   string        // path of the node's network namespace; empty: the calling thread's
	Wait    time.Duration // for the trunk's link; 0: DefaultWait
	Sysctls string        // the folder of the kernel's settings; empty: /proc/sys
}

// Plugger plugs ports of kind VLAN.
type Plugger struct {
	node  *hostlink.Node
	wait  time.Duration
	turns plug.Turns
}

// New makes a Plugger. Close releases it.
func New(o Options) (*Plugger, error) {
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return nil, err
	}
	node.Sysctls = o.Sysctls
	return &Plugger{node: node, wait: cmp.Or(o.Wait, DefaultWait)}, nil
}

// Close releases the handles.
func (p *Plugger) Close() { p.node.Close() }

// Expect implements plug.Plugger: it waits for the trunk's link.
func (p *Plugger) Expect(ctx context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return err
	}
	if err := p.await(ctx, w.Ref); err != nil {
		return fmt.Errorf("wait for the trunk of port %s: %w", w.PortID, err)
	}
	return nil
}

// Plug implements plug.Plugger.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return plug.Done{}, err
	}
	done, err := p.turns.Take(ctx, w.PortID)
	if err != nil {
		return plug.Done{}, err
	}
	defer done()
	d, err := p.plug(w)
	if err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	return d, nil
}

func (p *Plugger) plug(w plug.Want) (plug.Done, error) {
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return plug.Done{}, err
	}
	defer pod.Close()
	trunk, err := p.trunk(w.Ref)
	if err != nil {
		return plug.Done{}, err
	}
	if err := p.node.NL.LinkSetUp(rtnl.LinkRef(trunk.Index)); err != nil {
		return plug.Done{}, fmt.Errorf("set the trunk's link %s up: %w", trunk.Name, err)
	}
	l, err := inPod(pod, w.Ref, trunk)
	if err != nil {
		return plug.Done{}, err
	}
	if l == nil {
		if l, err = p.add(pod, w, trunk); err != nil {
			return plug.Done{}, err
		}
	}
	if handedOver(l) {
		return plug.Done{MTU: cmp.Or(w.Interface.MTU, l.Attrs().MTU)}, nil
	}
	if l.Attrs().Name != w.Pod.IfName {
		return plug.Done{}, fmt.Errorf("%w: the port is in the pod as %s, which a container of the pod may have named so", plug.ErrInterfaceExists, l.Attrs().Name)
	}
	pod.Sysctls = p.node.Sysctls
	if err := pod.Configure(w.Pod.IfName, w.Interface); err != nil {
		return plug.Done{}, err
	}
	if w.Binding == plug.BindingBridge {
		if err := handOver(pod, w.Ref, l); err != nil {
			return plug.Done{}, err
		}
	}
	return plug.Done{MTU: cmp.Or(w.Interface.MTU, l.Attrs().MTU)}, failpoint.Hit("plug.vlan.pod.after")
}

// Await implements plug.Plugger: once EC2 has the branch, it works.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	done, err := p.turns.Take(ctx, r.PortID)
	if err != nil {
		return err
	}
	defer done()
	pod, err := podif.OpenPod(r.Pod, p.node.ID)
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return nil // the link went with the pod
	case err == nil:
		defer pod.Close()
		err = remove(pod, r)
	}
	if err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(_ context.Context, w plug.Want) error {
	if err := w.ValidateFor(plug.VLAN); err != nil {
		return err
	}
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return err
	}
	defer pod.Close()
	var found plug.Differences
	trunk, err := p.trunk(w.Ref)
	switch {
	case errors.Is(err, plug.ErrNotReady):
		found.Add("the node has no link with the trunk's MAC address %s", w.Trunk)
	case err != nil:
		return err
	case trunk.Flags&up == 0:
		found.Add("the trunk's link %s is down", trunk.Name)
	}
	if err := check(pod, w, trunk, &found); err != nil {
		return err
	}
	return found.Of(w.PortID)
}

// List implements plug.Plugger. Nothing of a port is on the node itself: its link in a pod is
// found by the pod's record only, and goes with the pod.
func (p *Plugger) List(context.Context) ([]plug.Found, error) { return nil, nil }

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error { return p.Unplug(ctx, f.Ref) }

var _ plug.Plugger = (*Plugger)(nil)
