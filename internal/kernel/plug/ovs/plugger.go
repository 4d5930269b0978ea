package ovs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

// Wiring describes the links between the pod and the integration bridge for one kind of port. The
// node's end of the veth to the pod is LinkName in all kinds.
type Wiring struct {
	Kind       plug.Kind
	Failpoints string   // prefix of the failpoints pod, attach and detach, before and after
	Port       string   // name prefix of the link that is a port of the bridge
	Links      []string // name prefixes of all links of the kind, to recognize incomplete ones

	// Make creates the links and returns the node's end of the veth to the pod.
	Make func(*hostlink.Node, plug.Want, *podif.Namespace) (toPod hostlink.Link, err error)
	// Check adds differences of the links between that veth and the bridge; nil: there are none.
	Check func(*hostlink.Node, plug.Want, *plug.Differences) error
	// Remove removes the links that Make created.
	Remove func(*hostlink.Node, plug.Ref) error
}

// Plugger plugs ports of one kind into Open vSwitch.
type Plugger struct {
	wiring  Wiring
	node    *hostlink.Node
	db      *ovsdb.Client // nil: Open vSwitch is not configured on the node
	turns   *plug.Turns
	bridges []string
	log     *slog.Logger
}

// NewWired makes a Plugger of a kind. Close releases it.
func NewWired(o Options, w Wiring) (*Plugger, error) {
	node, err := hostlink.Open(o.Netns)
	if err != nil {
		return nil, err
	}
	node.Sysctls = o.Sysctls
	if len(o.Bridges) == 0 {
		o.Bridges = []string{"br-int"}
	}
	if o.Turns == nil {
		o.Turns = &plug.Turns{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Plugger{wiring: w, node: node, db: o.OVSDB, turns: o.Turns, bridges: o.Bridges, log: o.Logger}, nil
}

// Close releases the handles of the node's namespace. Ports stay plugged.
func (p *Plugger) Close() { p.node.Close() }

// accept validates a port.
func (p *Plugger) accept(w plug.Want) error {
	if err := w.ValidateFor(p.wiring.Kind); err != nil {
		return err
	}
	if p.db == nil {
		return fmt.Errorf("Kind: %q: this node plugs no ports into Open vSwitch, because berthd runs without --ovsdb: %w", w.Kind, plug.ErrInvalid)
	}
	if !slices.Contains(p.bridges, w.Bridge) {
		return fmt.Errorf("Bridge: %q: want one of %q, the bridges that this node allows: %w", w.Bridge, p.bridges, plug.ErrInvalid)
	}
	return nil
}

// row identifies the row of a port in OVSDB.
func (p *Plugger) row(r plug.Ref) ovsdb.Port {
	return ovsdb.Port{Link: p.wiring.Port + r.Short(), Ref: r}
}

// port is the desired row of a port in OVSDB.
func (p *Plugger) port(w plug.Want) ovsdb.Port {
	row := p.row(w.Ref)
	row.MAC, row.VMUUID = w.Interface.MAC.String(), w.VMUUID
	return row
}

func (p *Plugger) point(name string) string { return p.wiring.Failpoints + name }

// Plug implements plug.Plugger. It completes the pod's end before it adds the link to Open vSwitch,
// and so before OVN sees it.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := p.accept(w); err != nil {
		return plug.Done{}, err
	}
	done, err := p.turns.Take(ctx, w.Short())
	if err != nil {
		return plug.Done{}, err
	}
	defer done()
	return w.Plugged(p.plug(ctx, w))
}

func (p *Plugger) plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	bridge, err := p.db.Ready(ctx, p.port(w))
	if err != nil {
		return plug.Done{}, err
	}
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return plug.Done{}, err
	}
	defer pod.Close()
	if err := p.renew(ctx, w); err != nil {
		return plug.Done{}, err
	}
	link, err := p.wiring.Make(p.node, w, pod)
	if err == nil {
		err = failpoint.Around(p.point("pod"), func() error { return p.finishPod(link, bridge, pod, w) })
	}
	if err == nil {
		err = failpoint.Around(p.point("attach"), func() error { return p.db.Attach(ctx, p.port(w)) })
	}
	if err != nil {
		return plug.Done{}, err
	}
	return plug.Done{HostIfName: link.Name, HostMAC: link.MAC, MTU: w.Interface.MTU}, nil
}

// renew releases the previous link in Open vSwitch if other software removed it, so that a new one
// can be added.
func (p *Plugger) renew(ctx context.Context, w plug.Want) error {
	row := p.port(w)
	if l, err := p.node.Find(row.Link); err != nil || l != nil {
		return err
	}
	return p.db.Renew(ctx, row)
}

// finishPod sets up both ends of the veth to a pod. It starts with the node's end, because the pod
// can send packets as soon as its own end is up. It leaves an end that a VM runtime owns unchanged.
func (p *Plugger) finishPod(link hostlink.Link, bridge *ovsdb.Bridge, pod *podif.Namespace, w plug.Want) error {
	if link.HandedOver {
		return errors.Join(p.node.KeepFromNode(), p.node.Raise(link))
	}
	if bridge.Datapath == "netdev" {
		err := errors.Join(podif.FillChecksums(pod.NS, w.Pod.IfName), podif.FillChecksums(p.node.NS, link.Name))
		if err != nil {
			return err
		}
	}
	if err := errors.Join(p.node.KeepFromNode(), p.node.Raise(link)); err != nil {
		return err
	}
	pod.Sysctls = p.node.Sysctls
	err := pod.Configure(w.Pod.IfName, w.Interface)
	if err == nil && w.Binding == plug.BindingBridge {
		err = p.node.HandOver(w.Ref, link)
	}
	return err
}

// checkPod adds differences of both ends of the veth to a pod. If a VM runtime owns the pod's end,
// it only checks that the end exists.
func (p *Plugger) checkPod(w plug.Want, found *plug.Differences) error {
	pod, err := podif.OpenPod(w.Pod, p.node.ID)
	if err != nil {
		return err
	}
	defer pod.Close()
	host, err := p.node.Check(w.Ref, LinkName(w.Ref), found)
	if err != nil {
		return err
	}
	if host != nil {
		if err := hostlink.CheckPair(w, host.Attrs(), pod, found); err != nil {
			return err
		}
	}
	if err := p.node.CheckKept(found); err != nil || w.Binding == plug.BindingBridge {
		return err
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}

// Expect implements plug.Plugger.
func (p *Plugger) Expect(context.Context, plug.Want) error { return nil }

// Await implements plug.Plugger.
func (p *Plugger) Await(ctx context.Context, w plug.Want) error {
	if err := p.accept(w); err != nil {
		return err
	}
	return p.db.Await(ctx, p.port(w), w.OVN)
}

// Unplug implements plug.Plugger. It removes the links even if OVSDB is unreachable, and then
// returns an error: a row without a link has no traffic. If the node has no OVSDB configured, that
// is no error, so that the pod can be deleted. List and Remove remove the row once OVSDB is
// configured again.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	done, err := p.turns.Take(ctx, r.Short())
	if err != nil {
		return err
	}
	defer done()
	if err := failpoint.Hit(p.point("detach.before")); err != nil {
		return err
	}
	rowErr := p.detach(ctx, r)
	if err := failpoint.Hit(p.point("detach.after")); err != nil {
		return err
	}
	p.node.ForgetInPod(r, LinkName(r))
	return r.Unplugged(errors.Join(rowErr, p.wiring.Remove(p.node, r)))
}

// detach removes the row of a port from OVSDB.
func (p *Plugger) detach(ctx context.Context, r plug.Ref) error {
	if p.db == nil {
		p.log.Warn("removed the links of a port, but not its row in Open vSwitch, because --ovsdb is not set",
			"port", r.PortID, "attachment", r.Attachment, "interface", p.row(r).Link)
		return nil
	}
	return p.db.Detach(ctx, p.row(r))
}

// Check implements plug.Plugger.
func (p *Plugger) Check(ctx context.Context, w plug.Want) error {
	if err := p.accept(w); err != nil {
		return err
	}
	return w.Checked(func(w plug.Want, found *plug.Differences) error {
		err := p.checkPod(w, found)
		if err == nil && p.wiring.Check != nil {
			err = p.wiring.Check(p.node, w, found)
		}
		if err == nil {
			err = p.db.Check(ctx, p.port(w), found)
		}
		return err
	})
}

// List implements plug.Plugger. It finds ports by their links, and by rows of OVSDB whose link is
// gone.
func (p *Plugger) List(ctx context.Context) ([]plug.Found, error) {
	list, err := p.node.List(p.wiring.Kind, p.wiring.Links...)
	if err != nil {
		return nil, err
	}
	var rows []ovsdb.Interface
	if p.db != nil {
		if rows, err = p.db.Interfaces(ctx); err != nil {
			return nil, err
		}
	}
	for _, i := range rows {
		r := plug.Ref{Kind: p.wiring.Kind, Attachment: i.IDs[ovsdb.AttachmentID], PortID: i.IDs[ovsdb.IfaceID]}
		if len(r.PortID) < plug.PrefixLen || i.Name != p.wiring.Port+r.Short() {
			continue
		}
		if !slices.ContainsFunc(list, func(f plug.Found) bool { return f.Attachment == r.Attachment && f.PortID == r.PortID }) {
			list = append(list, plug.Found{Ref: r})
		}
	}
	slices.SortStableFunc(list, plug.Found.Compare)
	return list, nil
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	if f.HalfMade {
		return p.removeHalfMade(ctx, f.Link)
	}
	return p.Unplug(ctx, f.Ref)
}

// removeHalfMade removes an incomplete link that List found, unless Plug completes it at the same
// time.
func (p *Plugger) removeHalfMade(ctx context.Context, link string) error {
	const prefix = len("tap") // the length of all prefixes (plug.IsLinkOf)
	if len(link) != prefix+plug.PrefixLen {
		return fmt.Errorf("Link: %q: want the name of a port's link: %w", link, plug.ErrInvalid)
	}
	return p.turns.During(ctx, link[prefix:], func() error { return p.node.RemoveHalfMade(link) })
}

var _ plug.Plugger = (*Plugger)(nil)
