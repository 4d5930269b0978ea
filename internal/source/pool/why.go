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
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

// waiter is who waits for an address of an attachment, or nil.
func (l *ledger) waiter(key attachment.Key) *waiting.Waiter {
	for _, s := range l.pools {
		if w := s.queue.Find(key); w != nil {
			return w
		}
	}
	return l.undecided.Find(key)
}

// whyWaits tells why a waiter got nothing.
func (l *ledger) whyWaits(w *waiting.Waiter, now time.Time) *source.Exhausted {
	for _, s := range l.pools {
		if w.Queue() == &s.queue {
			return l.whyEmpty(s, now)
		}
	}
	if why := l.apiTrouble(); why != nil {
		return why
	}
	if !l.synced.mayChoose() {
		return exhausted("starting", "the API server has not told yet which namespaces and pools there are")
	}
	if _, _, why := choose(l.world, w.Request.Pod, l.told(w.Request.Wish)); why != nil {
		return why
	}
	return exhausted("starting", "the pod's pool was not known in time")
}

// whyEmpty tells why a pool has no free address here: what is wrong nearest to
// this node first.
func (l *ledger) whyEmpty(s *poolState, now time.Time) *source.Exhausted {
	none := "no address of pool " + s.name + " is free: "
	if l.unconfirmed {
		return exhausted("starting", "%sthe API server has not told yet which blocks this node has", none)
	}
	for _, name := range l.blockNames() {
		if h := l.blocks[name]; h.pool == s.name && h.release == notReleased && !h.programmed && h.down != "" {
			return exhausted("not-ready", "%sblock %s: %s", none, name, h.down)
		}
	}
	if why := l.apiTrouble(); why != nil {
		why.Message = none + why.Message
		return why
	}
	switch {
	case !l.mayPlan() || !l.synced.pools:
		return exhausted("starting", "%sthe API server has not told yet which pools there are and which blocks this node has", none)
	case !s.known && s.name == v1alpha1.DefaultPool:
		return exhausted("pool-unknown", "there is no AddressPool %s, and neither the pod nor its namespace names another (annotation %s): create it, or annotate the namespace",
			s.name, v1alpha1.AnnotationPool)
	case !s.known:
		return exhausted("pool-unknown", "there is no AddressPool %s, which the namespace's annotation %s names: create it, or correct the annotation", s.name, v1alpha1.AnnotationPool)
	case s.deleting:
		return exhausted("pool-deleted", "AddressPool %s is being deleted and gives no new address: let the namespace's annotation %s name another", s.name, v1alpha1.AnnotationPool)
	case s.refused != nil:
		return refusal(none, s.refused)
	}
	return l.whyNoBlock(s, none, now)
}

// whyNoBlock tells what became of the requests for a pool.
func (l *ledger) whyNoBlock(s *poolState, none string, now time.Time) *source.Exhausted {
	var oldest *request
	for _, r := range l.requestsOf(s.name) {
		if r.failed != "" {
			return exhausted(source.ReasonOf(r.failed), "%s%s", none, failure(r))
		}
		if oldest == nil && !l.answered(r) {
			oldest = r
		}
	}
	if oldest != nil {
		return exhausted("growing", "%sa block was asked for %v ago by BlockRequest %s and has not come; is berth-operator running?",
			none, now.Sub(oldest.created).Round(100*time.Millisecond), oldest.name)
	}
	return exhausted("growing", "%sa block is about to be asked for", none)
}

// failure is what the operator says of a failed request, which ends with what a
// person can do about it.
func failure(r *request) string {
	return cmp.Or(strings.TrimSuffix(r.message, "."), "the operator gives no block: "+r.failed)
}

// apiTrouble is an error that keeps this node from listing or watching; nil without.
func (l *ledger) apiTrouble() *source.Exhausted {
	if len(l.synced.trouble) == 0 {
		return nil
	}
	err := l.synced.trouble[slices.Min(slices.Collect(maps.Keys(l.synced.trouble)))]
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return &source.Exhausted{Reason: "permission", Message: fmt.Sprintf("the Kubernetes API refuses berthd: %v: apply deploy/chart", err), Err: err}
	}
	if apierrors.IsNotFound(err) { // a list is found, but of a kind that is not served
		return &source.Exhausted{Reason: "unreachable", Message: fmt.Sprintf("the Kubernetes API lacks kinds of Berth's: %v: apply deploy/chart", err), Err: err}
	}
	return &source.Exhausted{Reason: "unreachable", Message: fmt.Sprintf("the Kubernetes API cannot be used: %v: is the API server reachable from this node?", err), Err: err}
}

// refusal tells why a request could not be made.
func refusal(none string, err error) *source.Exhausted {
	reason := "unreachable"
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		reason = "permission"
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			reason = "refused"
		}
	}
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf("%sa block cannot be asked for: %v", none, err), Err: err}
}

// lastError is the current trouble; empty without.
func (l *ledger) lastError(now time.Time) string {
	if why := l.apiTrouble(); why != nil {
		return why.Message
	}
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		s := l.pools[name]
		if s.queue.Len() > 0 {
			return l.whyEmpty(s, now).Message
		}
	}
	for _, name := range l.blockNames() {
		if h := l.blocks[name]; h.unroutable {
			return fmt.Sprintf("block %s is not used: %s", name, h.down)
		}
	}
	if ws := l.undecided.All(); len(ws) > 0 {
		return l.whyWaits(ws[0], now).Message
	}
	return ""
}

// ready is nil once an address was usable here or, where none is to be free
// before a pod comes, one could be asked for.
func (l *ledger) ready(now time.Time) error {
	if l.usable {
		return nil
	}
	why := l.apiTrouble()
	if why == nil && (!l.mayPlan() || !l.synced.pools) {
		why = exhausted("starting", "the API server has not told yet which pools there are and which blocks this node has")
	}
	if why != nil {
		return fmt.Errorf("no address has been usable on this node yet: %s", why.Message)
	}
	known := 0
	for _, s := range l.pools {
		have, _ := l.supplyOf(s)
		switch {
		case !s.known:
		case have.target(l.watermark) > 0:
			return fmt.Errorf("no address has been usable on this node yet: %s", l.whyEmpty(s, now).Message)
		default:
			known++
		}
	}
	if known == 0 {
		return errors.New("no address has been usable on this node yet: there is no AddressPool: create one, named default for pods that choose none")
	}
	return nil
}
