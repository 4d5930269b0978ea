// Package ovs plugs ports straight into the integration bridge of Open vSwitch: a veth whose
// end on the node, tap and the first 11 characters of the port's ID, is a port of the
// bridge. So OVN wants it, and Neutron's OVS agent with its firewall in Open vSwitch.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hostlink"
	"github.com/berthnet/berth/internal/plug/ovsdb"
	"github.com/berthnet/berth/internal/plug/podif"
)

var _ = failpoint.Register("plug.ovs.pod.before", "plug.ovs.pod.after", "plug.ovs.attach.before", "plug.ovs.attach.after",
	"plug.ovs.detach.before", "plug.ovs.detach.after")

// Options of New.
type Options struct {
	Netns   string        // path of the node's network namespace; empty: the calling thread's
	OVSDB   *ovsdb.Client // is not closed by the Plugger
	Bridges []string      // that ports may be plugged into; empty: br-int
	Turns   *plug.Turns   // of all pluggers of the node, as they share names of links; nil: of this one
	Sysctls string        // the folder of the kernel's settings; empty: /proc/sys
}

// Plugger plugs ports of kind OVS.
type Plugger struct {
	Base
}

// Base is what pluggers into Open vSwitch have in common.
type Base struct {
	Node    *hostlink.Node
	DB      *ovsdb.Client
	Turns   *plug.Turns
	bridges []string
}

// NewBase opens the node's namespace. Close releases it.
func NewBase(o Options) (Base, error) {
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return Base{}, err
	}
	node.Sysctls = o.Sysctls
	if len(o.Bridges) == 0 {
		o.Bridges = []string{"br-int"}
	}
	if o.Turns == nil {
		o.Turns = &plug.Turns{}
	}
	return Base{Node: node, DB: o.OVSDB, Turns: o.Turns, bridges: o.Bridges}, nil
}

// New makes a Plugger. Close releases it.
func New(o Options) (*Plugger, error) {
	base, err := NewBase(o)
	if err != nil {
		return nil, err
	}
	return &Plugger{Base: base}, nil
}

// Close releases the node's namespace; ports stay as they are.
func (b *Base) Close() { b.Node.Close() }

// Accept checks what is asked for, of a kind.
func (b *Base) Accept(w plug.Want, kind plug.Kind) error {
	if err := w.Validate(); err != nil {
		return err
	}
	switch {
	case w.Kind != kind:
		return fmt.Errorf("Kind: %q: want %s here: %w", w.Kind, kind, plug.ErrInvalid)
	case !slices.Contains(b.bridges, w.Bridge):
		return fmt.Errorf("Bridge: %q: want one of %q, into which this node lets ports be plugged: %w", w.Bridge, b.bridges, plug.ErrInvalid)
	}
	return nil
}

// LinkName is the name of a port's link on the node.
func LinkName(r plug.Ref) string { return "tap" + r.Short() }

func port(w plug.Want) ovsdb.Port {
	return ovsdb.Port{Link: LinkName(w.Ref), Ref: w.Ref, MAC: w.Interface.MAC.String()}
}

// Plug implements plug.Plugger. The pod's end is complete before Open vSwitch, and so OVN, is
// told of the link.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := p.Accept(w, plug.OVS); err != nil {
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
	link, err := p.Node.ToPod(w, LinkName(w.Ref), pod)
	if err != nil {
		return plug.Done{}, err
	}
	err = failpoint.Around("plug.ovs.pod", func() error { return FinishPod(p.Node, link, bridge, pod, w) })
	if err == nil {
		err = failpoint.Around("plug.ovs.attach", func() error { return p.DB.Attach(ctx, port(w)) })
	}
	if err != nil {
		return plug.Done{}, err
	}
	return plug.Done{HostIfName: link.Name, HostMAC: link.MAC, MTU: w.Interface.MTU}, nil
}

// FinishPod sets both ends of a link to a pod up. The node's goes first: the pod's can send at
// once then.
func FinishPod(node *hostlink.Node, link hostlink.Link, bridge *ovsdb.Bridge, pod *podif.Namespace, w plug.Want) error {
	if bridge.Datapath == "netdev" {
		err := errors.Join(podif.FillChecksums(pod.NS, w.Pod.IfName), podif.FillChecksums(node.NS, link.Name))
		if err != nil {
			return err
		}
	}
	if err := errors.Join(node.KeepFromNode(), node.Raise(link)); err != nil {
		return err
	}
	pod.Sysctls = node.Sysctls
	return pod.Configure(w.Pod.IfName, w.Interface)
}

// Await implements plug.Plugger.
func (p *Plugger) Await(ctx context.Context, w plug.Want) error {
	if err := p.Accept(w, plug.OVS); err != nil {
		return err
	}
	return p.DB.Await(ctx, port(w), w.OVN)
}

// Unplug implements plug.Plugger. The link goes even when OVSDB does not answer, which is an
// error then: a row without a link carries nothing.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	done, err := p.Turns.Take(ctx, r.Short())
	if err != nil {
		return err
	}
	defer done()
	if err := failpoint.Hit("plug.ovs.detach.before"); err != nil {
		return err
	}
	rowErr := p.DB.Detach(ctx, ovsdb.Port{Link: LinkName(r), Ref: r})
	if err := failpoint.Hit("plug.ovs.detach.after"); err != nil {
		return err
	}
	p.Forget(r)
	if err := errors.Join(rowErr, p.Node.Remove(r, LinkName(r))); err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// Forget removes the rules of a port's interface in the pod, if that is there: they are
// nothing that anybody meets once the interface is gone, so what fails is not told.
func (b *Base) Forget(r plug.Ref) {
	pod, err := podif.OpenPod(r.Pod, b.Node.ID)
	if err != nil {
		return
	}
	defer pod.Close()
	host, err := b.Node.Find(LinkName(r))
	if err != nil || host == nil {
		return
	}
	if owner, _ := r.OwnerOf(host.Attrs()); owner != plug.Mine {
		return
	}
	l, err := pod.Link(r.Pod.IfName)
	if err == nil && l != nil && l.Attrs().ParentIndex == host.Attrs().Index {
		_ = pod.Forget(l.Attrs().Index)
	}
}

// Check implements plug.Plugger.
func (p *Plugger) Check(ctx context.Context, w plug.Want) error {
	if err := p.Accept(w, plug.OVS); err != nil {
		return err
	}
	var found plug.Differences
	if err := p.CheckPod(w, LinkName(w.Ref), &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	if err := p.DB.Check(ctx, port(w), &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
}

// CheckPod notes how a link to a pod differs from what is wanted, on both sides.
func (b *Base) CheckPod(w plug.Want, name string, found *plug.Differences) error {
	pod, err := podif.OpenPod(w.Pod, b.Node.ID)
	if err != nil {
		return err
	}
	defer pod.Close()
	host, err := b.Node.Check(w.Ref, name, found)
	if err != nil {
		return err
	}
	peer, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return err
	}
	if host != nil {
		a := host.Attrs()
		if a.Flags&net.FlagUp == 0 {
			found.Add("%s is down", a.Name)
		}
		if peer != nil && a.ParentIndex != peer.Attrs().Index {
			found.Add("%s on the node and %s in the pod are not one link", a.Name, w.Pod.IfName)
		}
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}

// List implements plug.Plugger.
func (p *Plugger) List(ctx context.Context) ([]plug.Found, error) {
	return p.ListKind(ctx, plug.OVS, "tap", "tap")
}

// ListKind lists the ports of a kind: by their links, and by rows of OVSDB whose link is gone,
// of which names begin with rowPrefix. halfMade begin the names of links that are of the kind.
func (b *Base) ListKind(ctx context.Context, kind plug.Kind, rowPrefix string, halfMade ...string) ([]plug.Found, error) {
	list, err := b.Node.List(kind, halfMade...)
	if err != nil {
		return nil, err
	}
	rows, err := b.DB.Interfaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range rows {
		r := plug.Ref{Kind: kind, Attachment: i.IDs[ovsdb.AttachmentID], PortID: i.IDs[ovsdb.IfaceID]}
		if len(r.PortID) < plug.PrefixLen || i.Name != rowPrefix+r.Short() {
			continue
		}
		if !slices.ContainsFunc(list, func(f plug.Found) bool { return f.Attachment == r.Attachment && f.PortID == r.PortID }) {
			list = append(list, plug.Found{Ref: r})
		}
	}
	slices.SortStableFunc(list, plug.Found.Compare)
	return list, nil
}

// RemoveHalfMade removes a link that List found half made, unless a Plug finishes it just now.
func (b *Base) RemoveHalfMade(ctx context.Context, link string) error {
	const prefix = len("tap") // of all names of links: tap, qbr, qvb, qvo
	if len(link) != prefix+plug.PrefixLen {
		return fmt.Errorf("Link: %q: want the name of a port's link: %w", link, plug.ErrInvalid)
	}
	done, err := b.Turns.Take(ctx, link[prefix:])
	if err != nil {
		return err
	}
	defer done()
	return b.Node.RemoveHalfMade(link)
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	if f.HalfMade {
		return p.RemoveHalfMade(ctx, f.Link)
	}
	return p.Unplug(ctx, f.Ref)
}

var _ plug.Plugger = (*Plugger)(nil)
