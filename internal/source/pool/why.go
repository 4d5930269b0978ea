package pool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
)

// view reads the holdings at a moment: what they are, and why pods have no address.
type view struct {
	n   *holdings
	now time.Time
}

func (n *holdings) at(now time.Time) view { return view{n, now} }

// unreachable returns why the API server cannot be used; nil if it can.
func (d view) unreachable() *source.Exhausted {
	err := d.n.sync.Err()
	if err == nil {
		return nil
	}
	reason, message := kubeapi.Advice(err)
	return &source.Exhausted{Reason: reason, Message: message, Err: err}
}

// waits tells why a waiter got nothing.
func (d view) waits(w *addressqueue.Waiter) *source.Exhausted {
	for _, s := range d.n.pools.byName {
		if w.Queue() == &s.queue {
			return d.empty(s)
		}
	}
	if why := d.unreachable(); why != nil {
		return why
	}
	if !mayChoose(d.n.sync) {
		return exhausted("starting", "the API server has not listed namespaces and pools yet")
	}
	if _, _, why := d.n.pools.choose(w.Request.Pod, d.n.policy.assumed(w.Request.Options)); why != nil {
		return why
	}
	return exhausted("starting", "the pod's pool was not known in time")
}

// empty tells why a pool has no free address here: the cause nearest to this node first.
func (d view) empty(s *poolState) *source.Exhausted {
	none := "no address of pool " + s.name + " is free: "
	if d.n.unconfirmed {
		return exhausted("starting", "%sthe API server has not listed this node's blocks yet", none)
	}
	for _, name := range d.n.blocks.names() {
		if h := d.n.blocks.byName[name]; h.pool == s.name && h.release == notReleased && !h.programmed && h.down != "" {
			return exhausted("not-ready", "%sblock %s: %s", none, name, h.down)
		}
	}
	if why := d.unreachable(); why != nil {
		why.Message = none + why.Message
		return why
	}
	switch {
	case !mayPlan(d.n.sync) || !d.n.sync.Listed(poolsResource):
		return exhausted("starting", "%sthe API server has not listed pools and this node's blocks yet", none)
	case !s.known && s.name == v1alpha1.DefaultPool:
		return exhausted("pool-unknown", "AddressPool %s does not exist, and neither the pod nor its namespace names another one (annotation %s): create it, or annotate the namespace",
			s.name, v1alpha1.AnnotationPool)
	case !s.known:
		return exhausted("pool-unknown", "AddressPool %s, which the namespace's annotation %s names, does not exist: create it, or correct the annotation", s.name, v1alpha1.AnnotationPool)
	case s.deleting:
		return exhausted("pool-deleted", "AddressPool %s is being deleted and hands out no new addresses: name another one in the namespace's annotation %s", s.name, v1alpha1.AnnotationPool)
	case s.refused != nil:
		return refusal(none, s.refused)
	}
	return d.noBlock(s, none)
}

// noBlock tells the state of the requests for a pool.
func (d view) noBlock(s *poolState, none string) *source.Exhausted {
	var oldest *request
	for _, r := range d.n.requests.of(s.name) {
		if r.failed != "" {
			return exhausted(source.ReasonOf(r.failed), "%s%s", none, failure(r))
		}
		if oldest == nil && !d.n.blocks.answered(r) {
			oldest = r
		}
	}
	if oldest != nil {
		return exhausted("growing", "%sa block was requested %v ago by BlockRequest %s and has not arrived; is berth-operator running?",
			none, d.now.Sub(oldest.created).Round(100*time.Millisecond), oldest.name)
	}
	return exhausted("growing", "%sa block is about to be requested", none)
}

// failure returns what the operator says about a failed request, including the remedy.
func failure(r *request) string {
	return cmp.Or(strings.TrimSuffix(r.message, "."), "the operator assigns no block: "+r.failed)
}

// refusal tells why a request could not be created.
func refusal(none string, err error) *source.Exhausted {
	reason := "unreachable"
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		reason = "permission"
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			reason = "refused"
		}
	}
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf("%sa block cannot be requested: %v", none, err), Err: err}
}

// lastError returns the current problem; empty: there is none.
func (d view) lastError() string {
	if why := d.unreachable(); why != nil {
		return why.Message
	}
	for _, name := range slices.Sorted(maps.Keys(d.n.pools.byName)) {
		s := d.n.pools.byName[name]
		if s.queue.Len() > 0 {
			return d.empty(s).Message
		}
	}
	for _, name := range d.n.blocks.names() {
		if h := d.n.blocks.byName[name]; h.unroutable {
			return fmt.Sprintf("block %s is not used: %s", name, h.down)
		}
	}
	if ws := d.n.pools.undecided.All(); len(ws) > 0 {
		return d.waits(ws[0]).Message
	}
	return ""
}

// ready is nil once an address was usable here or, if no pool keeps free addresses, could be requested.
func (d view) ready() error {
	if d.n.usable {
		return nil
	}
	why := d.unreachable()
	if why == nil && (!mayPlan(d.n.sync) || !d.n.sync.Listed(poolsResource)) {
		why = exhausted("starting", "the API server has not listed pools and this node's blocks yet")
	}
	if why != nil {
		return fmt.Errorf("no address has been usable on this node yet: %s", why.Message)
	}
	known := 0
	for _, s := range d.n.pools.byName {
		have, _ := d.n.blocks.supplyOf(s)
		switch {
		case !s.known:
		case have.target(d.n.policy.watermark) > 0:
			return fmt.Errorf("no address has been usable on this node yet: %s", d.empty(s).Message)
		default:
			known++
		}
	}
	if known == 0 {
		return errors.New("no address has been usable on this node yet: no AddressPool exists: create one, named default for pods that choose none")
	}
	return nil
}
