// Package plugfake plugs ports in memory, for tests of users of plug.Plugger. Node has the plugged ports, and Node.Open
// returns a Plugger of all kinds for one daemon.
package plugfake

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// Node is the set of ports plugged on a node. It outlives daemons and is safe for concurrent use, except for its
// exported fields, which must not be set during a call that reads them.
type Node struct {
	Fail error // returned by Plug
	// Expect waits until Arrived is closed, Await until Active is closed; nil: they return immediately.
	Arrived, Active chan struct{}
	Latency         time.Duration // latency of Plug and Unplug
	// Changed is called after a port was plugged or unplugged; nil: not called.
	Changed func(port string, plugged bool)

	mu      sync.Mutex           // guards all below
	plugged map[string]plug.Want // by port
	half    []string             // links
	clashes []string
}

// NewNode returns a node without ports.
func NewNode() *Node { return &Node{plugged: map[string]plug.Want{}} }

// LeaveHalfMade adds an incomplete link, as an interrupted daemon leaves it.
func (n *Node) LeaveHalfMade(link string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.half = append(n.half, link)
}

// HalfMade lists the incomplete links.
func (n *Node) HalfMade() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.half)
}

// Plugged returns the plugged ports by ID.
func (n *Node) Plugged() map[string]plug.Want {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.plugged)
}

// Clashes lists addresses that two ports had at the same time.
func (n *Node) Clashes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.clashes)
}

// Open returns the Plugger of one daemon. do runs an effect, or returns an error instead; nil: it always runs.
func (n *Node) Open(do func(effect func()) error) plug.Plugger {
	if do == nil {
		do = func(effect func()) error { effect(); return nil }
	}
	return &plugger{n, do}
}

type plugger struct {
	node *Node
	do   func(effect func()) error
}

func (p *plugger) call(ctx context.Context, work func(n *Node) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	refused := p.do(func() {
		p.node.mu.Lock()
		defer p.node.mu.Unlock()
		err = work(p.node)
	})
	if refused != nil {
		return refused
	}
	return err
}

// slowly runs call after the latency.
func (p *plugger) slowly(ctx context.Context, work func(n *Node) error) error {
	if p.node.Latency > 0 {
		select {
		case <-clock.Real{}.After(p.node.Latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.call(ctx, work)
}

// Expect implements plug.Plugger.
func (p *plugger) Expect(ctx context.Context, w plug.Want) error {
	return until(ctx, p.node.Arrived, w, "the agent has not created the link")
}

// Await implements plug.Plugger.
func (p *plugger) Await(ctx context.Context, w plug.Want) error {
	return until(ctx, p.node.Active, w, "OVN's controller has not installed the port's flows")
}

func until(ctx context.Context, is <-chan struct{}, w plug.Want, not string) error {
	if is == nil {
		return nil
	}
	select {
	case <-is:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: port %s: %s", plug.ErrNotReady, w.PortID, not)
	}
}

// Plug implements plug.Plugger.
func (p *plugger) Plug(ctx context.Context, w plug.Want) (done plug.Done, err error) {
	err = p.slowly(ctx, func(n *Node) error { return n.plug(w) })
	if err != nil {
		return plug.Done{}, err
	}
	return plug.Done{HostIfName: link(w), HostMAC: w.Interface.MAC, MTU: w.Interface.MTU}, nil
}

func link(w plug.Want) string { return "tap" + w.Short() }

// plug plugs a port. The caller holds n.mu.
func (n *Node) plug(w plug.Want) error {
	if n.Fail != nil {
		return n.Fail
	}
	if err := w.Validate(); err != nil {
		return err
	}
	for id, o := range n.plugged {
		switch {
		case id == w.PortID && o.Attachment != w.Attachment:
			return plug.ErrPortInUse
		case id != w.PortID && o.Pod.Netns == w.Pod.Netns && o.Pod.IfName == w.Pod.IfName:
			return plug.ErrInterfaceExists
		case id != w.PortID && slices.ContainsFunc(w.Interface.Addresses, func(a netip.Prefix) bool { return slices.Contains(o.Interface.Addresses, a) }):
			n.clashes = append(n.clashes, fmt.Sprintf("port %s of %s was plugged with %v, which port %s of %s has", w.PortID, w.Attachment, w.Interface.Addresses, id, o.Attachment))
		}
	}
	n.plugged[w.PortID] = w
	n.changed(w.PortID, true)
	return nil
}

func (n *Node) changed(port string, plugged bool) {
	if n.Changed != nil {
		n.Changed(port, plugged)
	}
}

// Unplug implements plug.Plugger.
func (p *plugger) Unplug(ctx context.Context, r plug.Ref) error {
	return p.slowly(ctx, func(n *Node) error {
		if w, ok := n.plugged[r.PortID]; ok && w.Attachment == r.Attachment {
			delete(n.plugged, r.PortID)
			n.changed(r.PortID, false)
		}
		return nil
	})
}

// Check implements plug.Plugger.
func (p *plugger) Check(ctx context.Context, w plug.Want) error {
	return p.call(ctx, func(n *Node) error {
		var differs plug.Differences
		switch is, ok := n.plugged[w.PortID]; {
		case !ok:
			differs.Add("is not plugged")
		case !reflect.DeepEqual(is, w):
			differs.Add("is plugged as %+v, want %+v", is, w)
		}
		return differs.Of(w.PortID)
	})
}

// List implements plug.Plugger.
func (p *plugger) List(ctx context.Context) (list []plug.Found, err error) {
	err = p.call(ctx, func(n *Node) error {
		for _, w := range n.plugged {
			list = append(list, plug.Found{Ref: w.Ref, Link: link(w)})
		}
		for _, l := range n.half {
			list = append(list, plug.Found{Ref: plug.Ref{Kind: plug.OVS}, HalfMade: true, Link: l})
		}
		return nil
	})
	slices.SortFunc(list, plug.Found.Compare)
	return list, err
}

// Remove implements plug.Plugger.
func (p *plugger) Remove(ctx context.Context, f plug.Found) error {
	if !f.HalfMade {
		return p.Unplug(ctx, f.Ref)
	}
	return p.call(ctx, func(n *Node) error {
		n.half = slices.DeleteFunc(n.half, func(l string) bool { return l == f.Link })
		return nil
	})
}
