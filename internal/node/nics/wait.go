package nics

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/source"
)

// Acquire implements nicpart.NICs. The error comes at once if the pod's annotations or its PodNICs are invalid, in
// the latter case with plug.ErrInvalid.
func (n *NICs) Acquire(ctx context.Context, req attachment.Request) ([]attachment.NIC, error) {
	var d decision
	started := n.clock.Now()
	err := n.waiters.Until(ctx, req, func() *source.Exhausted {
		d = n.observed.decide(n.rules, req)
		return d.wait
	})
	switch {
	case err != nil:
		return nil, err
	case d.err != nil:
		return nil, refused(d.err)
	case len(d.nics) > 0:
		n.cfg.Metrics.Waited("bound", n.clock.Now().Sub(started))
	}
	return d.nics, nil
}

// refused returns the error of an ADD that cannot succeed before an annotation or a PodNIC changes.
func refused(err error) *source.Exhausted {
	reason := "nic-refused"
	if errors.Is(err, plug.ErrInvalid) {
		reason = "podnic-invalid"
	}
	return &source.Exhausted{Reason: reason, Message: err.Error(), Err: err}
}

// Why implements nicpart.NICs.
func (n *NICs) Why(key attachment.Key) *source.Exhausted { return n.waiters.Why(key) }

// during notes what an attachment waits for until done is called.
func (n *NICs) during(rec attachment.Record, reason, format string, args ...any) (done func()) {
	return n.waiters.Note(requestOf(rec), func() *source.Exhausted { return waiters.Missing(reason, format, args...) })
}

func requestOf(rec attachment.Record) attachment.Request {
	return attachment.Request{Key: rec.Key, Pod: rec.Pod}
}

// Expect implements nicpart.NICs. Alcor's agent provides links, and EC2 those of trunks. Errors other than
// plug.ErrNotReady are left for Plug to find.
func (n *NICs) Expect(ctx context.Context, rec attachment.Record) error {
	started, foreign := n.clock.Now(), false
	for _, nic := range rec.NICs {
		what := fmt.Sprintf("NIC %s: port %s of PodNIC %s/%s", nic.IfName, nic.Port, rec.Pod.Namespace, nic.Object)
		by, others := provider(nic)
		done := n.during(rec, "no-link", "%s waits for %s", what, by)
		err := n.cfg.Plugger.Expect(ctx, want(rec, nic))
		done()
		if errors.Is(err, plug.ErrNotReady) {
			if !errors.Is(ctx.Err(), context.Canceled) { // else the ADD is over
				n.outcome(rec, nic, reasonPlug, err)
			}
			return &source.Exhausted{Reason: "no-link", Message: what + ": " + err.Error(), Err: err}
		}
		foreign = foreign || others
	}
	if foreign {
		n.cfg.Metrics.Waited("link", n.clock.Now().Sub(started))
	}
	return nil
}

// provider returns who provides the link that a NIC is plugged into, in words, and whether it is not this daemon.
func provider(nic attachment.NIC) (by string, others bool) {
	switch plug.Kind(nic.Plug.Type) {
	case plug.Netns:
		return "the VPC's agent on this node, which has not created its link", true
	case plug.VLAN, plug.RoutedVLAN:
		return fmt.Sprintf("the link of its trunk with MAC address %s, which is not on this node yet", shown(nic.Plug.Trunk, 20)), true
	}
	return "this berthd", false
}

// Await implements nicpart.NICs. A NIC carries packets when OVN on the node says so, or else the provider, by the
// PodNIC's phase.
func (n *NICs) Await(ctx context.Context, rec attachment.Record) error {
	started := n.clock.Now()
	for _, nic := range rec.NICs {
		if err := n.await(ctx, rec, nic); err != nil {
			n.outcome(rec, nic, reasonPlug, err)
			return err
		}
	}
	n.cfg.Metrics.Waited("active", n.clock.Now().Sub(started))
	return nil
}

func (n *NICs) await(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	what := fmt.Sprintf("NIC %s: port %s of PodNIC %s/%s", nic.IfName, nic.Port, rec.Pod.Namespace, nic.Object)
	done := n.during(rec, "not-active", "%s is plugged and waits for the VPC's software on the node (OVN's controller, or Neutron's agent)", what)
	err := n.cfg.Plugger.Await(ctx, want(rec, nic))
	done()
	switch {
	case errors.Is(err, plug.ErrNotReady):
		return &source.Exhausted{Reason: "not-active", Message: what + ": " + err.Error(), Err: err}
	case errors.Is(err, plug.ErrUnreachable):
		return &source.Exhausted{Reason: "ovsdb-unreachable", Message: what + ": " + err.Error(), Err: err}
	case err != nil:
		return err
	}
	if _, others := provider(nic); others || nic.Plug.OVN {
		return nil // the node knows earlier than the provider
	}
	// The operator passes on the provider's word.
	return n.waiters.Until(ctx, requestOf(rec), func() *source.Exhausted {
		o := n.observed.find(rec, nic)
		switch {
		case o == nil:
			return waiters.Missing("podnic-gone", "%s is plugged, and its PodNIC is gone or has another port", what)
		case o.phase == v1alpha1.PhaseActive:
			return nil
		}
		return n.observed.orUnreachable(waiters.Missing("not-active", "%s is plugged at host %s, and the provider does not say that it is active: phase %s", what, shown(o.host, 80), o.phase))
	})
}
