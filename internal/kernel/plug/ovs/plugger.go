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

// Wiring is what a kind of port has between the pod and the integration bridge. The node's
// end of the link to the pod is called as LinkName says in all of them.
type Wiring struct {
	Kind       plug.Kind
	Failpoints string   // begins their names: pod, attach and detach, before and after
	Port       string   // begins the name of the link that is a port of the bridge
	Links      []string // begin the names of the kind's links, by which it is known what is half made

	// Make makes the links, up to the node's end of the link to the pod, which it returns.
	Make func(*hostlink.Node, plug.Want, *podif.Namespace) (toPod hostlink.Link, err error)
	// Check notes what is wrong between that and the bridge; nil: there is nothing.
	Check func(*hostlink.Node, plug.Want, *plug.Differences) error
	// Remove removes what Make made.
	Remove func(*hostlink.Node, plug.Ref) error
}

// Plugger plugs ports of one kind into Open vSwitch.
type Plugger struct {
	wiring  Wiring
	node    *hostlink.Node
	db      *ovsdb.Client // nil: the node plugs nothing into Open vSwitch any more
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

// Close releases the node's namespace; ports stay as they are.
func (p *Plugger) Close() { p.node.Close() }

// accept checks what is asked for.
func (p *Plugger) accept(w plug.Want) error {
	if err := w.ValidateFor(p.wiring.Kind); err != nil {
		return err
	}
	if p.db == nil {
		return fmt.Errorf("Kind: %q: this node plugs nothing into Open vSwitch, as berthd is not told where its database is (--ovsdb): %w", w.Kind, plug.ErrInvalid)
	}
	if !slices.Contains(p.bridges, w.Bridge) {
		return fmt.Errorf("Bridge: %q: want one of %q, into which this node lets ports be plugged: %w", w.Bridge, p.bridges, plug.ErrInvalid)
	}
	return nil
}

// row is a port's in OVSDB, as far as it is known by its name.
func (p *Plugger) row(r plug.Ref) ovsdb.Port {
	return ovsdb.Port{Link: p.wiring.Port + r.Short(), Ref: r}
}

// port is a port's row in OVSDB, with what is wanted.
func (p *Plugger) port(w plug.Want) ovsdb.Port {
	row := p.row(w.Ref)
	row.MAC, row.VMUUID = w.Interface.MAC.String(), w.VMUUID
	return row
}

func (p *Plugger) point(name string) string { return p.wiring.Failpoints + name }

// Plug implements plug.Plugger. The pod's end is complete before Open vSwitch, and so OVN, is
// told of the link.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if err := p.accept(w); err != nil {
		return plug.Done{}, err
	}
	done, err := p.turns.Take(ctx, w.Short())
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

// renew makes place for the link that is a port of the bridge, if somebody removed the one that was.
func (p *Plugger) renew(ctx context.Context, w plug.Want) error {
	row := p.port(w)
	if l, err := p.node.Find(row.Link); err != nil || l != nil {
		return err
	}
	return p.db.Renew(ctx, row)
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

// Unplug implements plug.Plugger. The links go even when OVSDB does not answer, which is an
// error then: a row without a link carries nothing. Where the node has no OVSDB any more it is
// none, as a pod must go all the same; the row is taken away by List and Remove once it has.
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
	if err := errors.Join(rowErr, p.wiring.Remove(p.node, r)); err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// detach takes a port's row out of OVSDB.
func (p *Plugger) detach(ctx context.Context, r plug.Ref) error {
	if p.db == nil {
		p.log.Warn("unplugged by its links alone, as no database of Open vSwitch is configured: its row there, if it has one, is left",
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
	var found plug.Differences
	err := p.checkPod(w, &found)
	if err == nil && p.wiring.Check != nil {
		err = p.wiring.Check(p.node, w, &found)
	}
	if err == nil {
		err = p.db.Check(ctx, p.port(w), &found)
	}
	if err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
}

// List implements plug.Plugger: by the ports' links, and by rows of OVSDB whose link is gone.
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

// removeHalfMade removes a link that List found half made, unless a Plug finishes it just now.
func (p *Plugger) removeHalfMade(ctx context.Context, link string) error {
	const prefix = len("tap") // of all names of links (plug.IsLinkOf)
	if len(link) != prefix+plug.PrefixLen {
		return fmt.Errorf("Link: %q: want the name of a port's link: %w", link, plug.ErrInvalid)
	}
	done, err := p.turns.Take(ctx, link[prefix:])
	if err != nil {
		return err
	}
	defer done()
	return p.node.RemoveHalfMade(link)
}

var _ plug.Plugger = (*Plugger)(nil)
