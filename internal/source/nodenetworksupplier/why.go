package nodenetworksupplier

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

// Why implements enisource.Supplier: what is wrong nearest to this node first.
func (s *supplier) Why(bool) *source.Exhausted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason, message, err := s.trouble(); reason != "" {
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + message, Err: err}
	}
	if c := meta.FindStatusCondition(s.object.Status.Conditions, v1alpha1.ConditionAtCapacity); c != nil && c.Status == "True" {
		return &source.Exhausted{Reason: source.ReasonOf(c.Reason), Message: "no address is free: " + c.Message}
	}
	if !s.reportedAt.IsZero() {
		return &source.Exhausted{Reason: enisource.Growing, Message: fmt.Sprintf(
			"no address is free yet: the operator was told %v ago and has not given more; is berth-operator running?", s.clock.Now().Sub(s.reportedAt).Round(100*time.Millisecond))}
	}
	return &source.Exhausted{Reason: enisource.Growing, Message: "no address is free yet: the operator has not given more; is berth-operator running?"}
}

// LastError implements enisource.Supplier.
func (s *supplier) LastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, message, _ := s.trouble(); message != "" {
		return message
	}
	if len(s.bad) > 0 {
		return fmt.Sprintf("NodeNetwork %s has entries that make no sense: %s", s.cfg.NodeName, strings.Join(s.bad, "; "))
	}
	return ""
}

// trouble is what keeps the operator's addresses from this node; empty without.
// s.mu is held.
func (s *supplier) trouble() (reason, message string, err error) {
	name, o := s.cfg.NodeName, s.object
	if err := s.mirror.Sync.Err(); err != nil {
		reason, message = kubeapi.Advice(err)
		return reason, message, err
	}
	switch {
	case !s.mirror.Sync.Listed(resource):
		return "starting", "the API server has not told yet whether there is a NodeNetwork " + name, nil
	case s.createErr != nil:
		return "no-object", s.createErr.Error(), s.createErr
	case o == nil && s.cfg.Spec == nil:
		return "no-object", fmt.Sprintf("there is no NodeNetwork %s: create it, or let berthd do so by --auto-create-node-network", name), nil
	case o == nil:
		return "no-object", fmt.Sprintf("NodeNetwork %s is being created", name), nil
	case o.Spec.InstanceID != s.cfg.InstanceID:
		return "other-instance", fmt.Sprintf("NodeNetwork %s is of instance %s and this is %s: delete it, or let berthd replace it by --auto-create-node-network",
			name, o.Spec.InstanceID, s.cfg.InstanceID), nil
	}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded); c != nil && c.Status == "True" && c.Reason != v1alpha1.ReasonLinkMissing {
		return source.ReasonOf(c.Reason), cmp.Or(c.Message, c.Reason), nil
	}
	if !reported(o) {
		return "no-operator", fmt.Sprintf("the operator has not reported on NodeNetwork %s yet: is berth-operator running?", name), nil
	}
	return "", "", nil
}
