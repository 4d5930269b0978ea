package nics

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// waiter is an ADD that waits. why is called with NICs.mu held.
type waiter struct {
	why func() *source.Exhausted
}

// Acquire returns the NICs that a pod is to have, once all of them are bound to this
// node: none for a pod that asks for none. When ctx ends first the error is an
// *source.Exhausted that names the port, its host and its status; so it is, at once, about
// what cannot be, and a plug.ErrInvalid where a PodNIC is to blame.
func (n *NICs) Acquire(ctx context.Context, req source.Request) ([]attachment.NIC, error) {
	decide := func() verdict { return n.book.decide(n.rules, req) }
	begun := n.clock.Now()
	defer n.waits(req.Key, func() *source.Exhausted { return decide().wait })()
	for {
		n.mu.Lock()
		v, next := decide(), n.next
		n.mu.Unlock()
		switch {
		case v.err != nil:
			return nil, refused(v.err)
		case v.wait == nil:
			if len(v.nics) > 0 {
				n.cfg.Observer.Waited("bound", n.clock.Now().Sub(begun))
			}
			return v.nics, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			v.wait.Err = errors.Join(v.wait.Err, ctx.Err())
			return nil, v.wait
		}
	}
}

// refused is an ADD's answer about what cannot be, until somebody changes an annotation or
// a PodNIC.
func refused(err error) *source.Exhausted {
	reason := "nic-refused"
	if errors.Is(err, plug.ErrInvalid) {
		reason = "podnic-invalid"
	}
	return &source.Exhausted{Reason: reason, Message: err.Error(), Err: err}
}

// waits notes that an ADD waits, until the function that it returns is called.
func (n *NICs) waits(key attachment.Key, why func() *source.Exhausted) (over func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiters[key] = waiter{why}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.waiters, key)
	}
}

// Why tells what the Acquire, the Expect, or the Await of key waits for; nil when none does.
func (n *NICs) Why(key attachment.Key) *source.Exhausted {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, ok := n.waiters[key]; ok {
		return w.why()
	}
	return nil
}

// Expect returns once all is on the node that the NICs of an attachment are plugged from, where
// others bring it (Alcor's agent, or EC2 a trunk). When that takes too long, or ctx ends, the error is an
// *source.Exhausted. What else is wrong is left for Plug to find and tell.
func (n *NICs) Expect(ctx context.Context, rec attachment.Record) error {
	begun, foreign := n.clock.Now(), false
	for _, nic := range rec.NICs {
		what := fmt.Sprintf("NIC %s: port %s of PodNIC %s/%s", nic.IfName, nic.Port, rec.Pod.Namespace, nic.Object)
		by, others := bringer(nic)
		over := n.waits(rec.Key, func() *source.Exhausted { return exhausted("no-link", "%s waits for %s", what, by) })
		err := n.cfg.Plugger.Expect(ctx, want(rec, nic))
		over()
		if errors.Is(err, plug.ErrNotReady) {
			if !errors.Is(ctx.Err(), context.Canceled) { // else nobody waits for it any more
				n.failed(rec, nic, reasonPlug, err)
			}
			return &source.Exhausted{Reason: "no-link", Message: what + ": " + err.Error(), Err: err}
		}
		foreign = foreign || others
	}
	if foreign {
		n.cfg.Observer.Waited("link", n.clock.Now().Sub(begun))
	}
	return nil
}

// bringer is who brings what a NIC is plugged from, in words, and whether that is others.
func bringer(nic attachment.NIC) (by string, others bool) {
	switch plug.Kind(nic.Plug.Type) {
	case plug.Netns:
		return "the agent of the VPC on this node, which has not made its link", true
	case plug.VLAN, plug.RoutedVLAN:
		return fmt.Sprintf("the link of its trunk with MAC address %s, which this node does not have yet", shown(nic.Plug.Trunk, 20)), true
	}
	return "what this berthd makes", false
}

// Await returns once all NICs of an attachment carry packets, as OVN says on the node,
// or else as the provider says by the PodNIC's phase. When ctx ends first the error is
// an *source.Exhausted.
func (n *NICs) Await(ctx context.Context, rec attachment.Record) error {
	begun := n.clock.Now()
	for _, nic := range rec.NICs {
		if err := n.await(ctx, rec, nic); err != nil {
			n.failed(rec, nic, reasonPlug, err)
			return err
		}
	}
	n.cfg.Observer.Waited("active", n.clock.Now().Sub(begun))
	return nil
}

func (n *NICs) await(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	what := fmt.Sprintf("NIC %s: port %s of PodNIC %s/%s", nic.IfName, nic.Port, rec.Pod.Namespace, nic.Object)
	over := n.waits(rec.Key, func() *source.Exhausted {
		return exhausted("not-active", "%s is plugged and waits for the VPC's part of the node (OVN's controller, or Neutron's agent)", what)
	})
	err := n.cfg.Plugger.Await(ctx, want(rec, nic))
	over()
	switch {
	case errors.Is(err, plug.ErrNotReady):
		return &source.Exhausted{Reason: "not-active", Message: what + ": " + err.Error(), Err: err}
	case errors.Is(err, plug.ErrUnreachable):
		return &source.Exhausted{Reason: "ovsdb-unreachable", Message: what + ": " + err.Error(), Err: err}
	case err != nil:
		return err
	}
	if _, others := bringer(nic); others || nic.Plug.OVN {
		return nil // the node knows better than the provider, and sooner
	}
	return n.awaitActive(ctx, rec, nic, what)
}

// awaitActive waits for the provider's word, which the operator passes on.
func (n *NICs) awaitActive(ctx context.Context, rec attachment.Record, nic attachment.NIC, what string) error {
	why := func() *source.Exhausted {
		o := n.book.find(rec, nic)
		switch {
		case o == nil:
			return exhausted("podnic-gone", "%s is plugged, and its PodNIC is gone or has another port", what)
		case o.phase == v1alpha1.PhaseActive:
			return nil
		}
		return n.book.unlessUnreachable(exhausted("not-active", "%s is plugged at host %s, and the provider does not say that it is active: phase %s", what, shown(o.host, 80), o.phase))
	}
	defer n.waits(rec.Key, why)()
	for {
		n.mu.Lock()
		w, next := why(), n.next
		n.mu.Unlock()
		if w == nil {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			w.Err = errors.Join(w.Err, ctx.Err())
			return w
		}
	}
}
