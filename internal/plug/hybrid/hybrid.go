// Package hybrid plugs ports into the integration bridge of Open vSwitch by a Linux bridge of
// the port's own, for firewalls that filter by iptables there (Neutron's iptables_hybrid). The
// names are those that Neutron's agent looks for, of the first 11 characters of the port's ID:
//
//	pod's interface = tap - qbr (a Linux bridge) - qvb = qvo - integration bridge
package hybrid

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hostlink"
	"github.com/berthnet/berth/internal/plug/ovs"
	"github.com/berthnet/berth/internal/plug/ovsdb"
	"github.com/berthnet/berth/internal/plug/podif"
)

var _ = failpoint.Register("plug.hybrid.bridge.after", "plug.hybrid.veth.after", "plug.hybrid.join.after", "plug.hybrid.pod.after",
	"plug.hybrid.attach.after", "plug.hybrid.detach.before", "plug.hybrid.detach.after", "plug.hybrid.links.after")

// Plugger plugs ports of kind OVSHybrid.
type Plugger struct {
	ovs.Base
}

// New makes a Plugger. Close releases it.
func New(o ovs.Options) (*Plugger, error) {
	base, err := ovs.NewBase(o)
	if err != nil {
		return nil, err
	}
	return &Plugger{Base: base}, nil
}

// Names of a port's links on the node.
func tap(r plug.Ref) string { return ovs.LinkName(r) }
func qbr(r plug.Ref) string { return "qbr" + r.Short() }
func qvb(r plug.Ref) string { return "qvb" + r.Short() }
func qvo(r plug.Ref) string { return "qvo" + r.Short() }

func port(w plug.Want) ovsdb.Port {
	return ovsdb.Port{Link: qvo(w.Ref), Ref: w.Ref, MAC: w.Interface.MAC.String()}
}

// Plug implements plug.Plugger.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := p.Accept(w, plug.OVSHybrid); err != nil {
		return plug.Done{}, err
	}
	done, err := p.Turns.Take(ctx, w.Short())
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

func (p *Plugger) plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	bridge, err := p.DB.Ready(ctx, port(w))
	if err != nil {
		return plug.Done{}, err
	}
	pod, err := podif.OpenPod(w.Pod, p.Node.ID)
	if err != nil {
		return plug.Done{}, err
	}
	defer pod.Close()
	var own, inner, outer, toPod hostlink.Link
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"bridge", func() (err error) { own, err = p.Node.Bridge(w, qbr(w.Ref)); return err }},
		{"veth", func() (err error) { inner, outer, err = p.Node.Between(w, qvb(w.Ref), qvo(w.Ref)); return err }},
		{"join", func() (err error) {
			if toPod, err = p.Node.ToPod(w, tap(w.Ref), pod); err != nil {
				return err
			}
			return errors.Join(p.Node.Join(inner, own), p.Node.Join(toPod, own), p.Node.Raise(outer, inner, own))
		}},
		{"pod", func() error { return ovs.FinishPod(p.Node, toPod, bridge, pod, w) }},
		{"attach", func() error { return p.DB.Attach(ctx, port(w)) }},
	} {
		err := step.do()
		if err == nil {
			err = failpoint.Hit("plug.hybrid." + step.name + ".after")
		}
		if err != nil {
			return plug.Done{}, err
		}
	}
	return plug.Done{HostIfName: toPod.Name, HostMAC: toPod.MAC, MTU: w.Interface.MTU}, nil
}

// Await implements plug.Plugger.
func (p *Plugger) Await(ctx context.Context, w plug.Want) error {
	if err := p.Accept(w, plug.OVSHybrid); err != nil {
		return err
	}
	return p.DB.Await(ctx, port(w), w.OVN)
}

// Unplug implements plug.Plugger. The links go even when OVSDB does not answer, which is an
// error then.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	done, err := p.Turns.Take(ctx, r.Short())
	if err != nil {
		return err
	}
	defer done()
	if err := failpoint.Hit("plug.hybrid.detach.before"); err != nil {
		return err
	}
	rowErr := p.DB.Detach(ctx, ovsdb.Port{Link: qvo(r), Ref: r})
	if err := failpoint.Hit("plug.hybrid.detach.after"); err != nil {
		return err
	}
	p.Forget(r)
	linkErr := p.Node.Remove(r, tap(r))
	if err := failpoint.Hit("plug.hybrid.links.after"); err != nil {
		return err
	}
	if err := errors.Join(rowErr, linkErr, p.Node.Remove(r, qvb(r), qvo(r), qbr(r))); err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(ctx context.Context, w plug.Want) error {
	if err := p.Accept(w, plug.OVSHybrid); err != nil {
		return err
	}
	var found plug.Differences
	for _, step := range []func() error{
		func() error { return p.CheckPod(w, tap(w.Ref), &found) },
		func() error { return p.checkLinks(w, &found) },
		func() error { return p.DB.Check(ctx, port(w), &found) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("check port %s: %w", w.PortID, err)
		}
	}
	return found.Of(w.PortID)
}

// checkLinks notes what is wrong between the pod's link and the integration bridge.
func (p *Plugger) checkLinks(w plug.Want, found *plug.Differences) error {
	own, err := p.Node.Check(w.Ref, qbr(w.Ref), found)
	if err != nil {
		return err
	}
	for _, name := range []string{tap(w.Ref), qvb(w.Ref), qvo(w.Ref)} {
		l, err := p.Node.Find(name)
		if name != tap(w.Ref) { // which CheckPod named
			l, err = p.Node.Check(w.Ref, name, found)
		}
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if name != qvo(w.Ref) && own != nil && l.Attrs().MasterIndex != own.Attrs().Index {
			found.Add("%s is not joined to %s", name, qbr(w.Ref))
		}
		if name != tap(w.Ref) && l.Attrs().Flags&net.FlagUp == 0 {
			found.Add("%s is down", name)
		}
	}
	if own != nil && own.Attrs().Flags&net.FlagUp == 0 {
		found.Add("%s is down", qbr(w.Ref))
	}
	return nil
}

// List implements plug.Plugger.
func (p *Plugger) List(ctx context.Context) ([]plug.Found, error) {
	return p.ListKind(ctx, plug.OVSHybrid, "qvo", "qbr", "qvb", "qvo")
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	if f.HalfMade {
		return p.RemoveHalfMade(ctx, f.Link)
	}
	return p.Unplug(ctx, f.Ref)
}

var _ plug.Plugger = (*Plugger)(nil)
