package eni

import (
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/source"
)

// New returns a source of node mode that is ready for Restore: a reconciler made
// with c supplies it. The stored inventory is loaded if it is of this instance.
// InstanceID, Node, Clock and Logger of c are taken from the source.
func New(o Options, c eni.Config) (*Source, error) {
	s, err := newSource(o)
	if err != nil {
		return nil, err
	}
	c.InstanceID, c.Node, c.Clock, c.Logger = o.InstanceID, s, s.clock, s.log
	rec, err := eni.New(c)
	if err != nil {
		return nil, err
	}
	s.supply = &reconciled{rec, c.Policy.PrefixDelegation}
	s.load()
	return s, nil
}

// reconciled is the reconciler as a Supplier.
type reconciled struct {
	*eni.Reconciler
	prefixes bool
}

// PrefixDelegation implements Supplier.
func (r *reconciled) PrefixDelegation() bool { return r.prefixes }

// LastError implements Supplier.
func (r *reconciled) LastError() string { return r.Status().LastError }

// reasons by class of what went wrong at the cloud.
var reasons = map[cloud.Class]string{
	cloud.Throttled: "throttled", cloud.SubnetFull: plan.ReasonSubnetFull, cloud.LimitReached: plan.ReasonENILimit,
	cloud.Permission: "permission", cloud.Bug: "refused", cloud.Gone: "refused",
}

// Why implements Supplier.
func (r *reconciled) Why(served bool) *source.Exhausted {
	st := r.Status()
	switch {
	case st.Err != nil && (st.Grows || !st.Confirmed):
		reason, ok := reasons[st.Class]
		if !ok {
			reason = "unreachable"
		}
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + st.LastError, Err: st.Err}
	case !st.Confirmed && !served:
		return &source.Exhausted{Reason: "starting", Message: "no address is free: EC2 has not told yet which addresses this node has"}
	case st.Shortage != "":
		return &source.Exhausted{Reason: st.Shortage, Message: "no address is free: " + st.Explanation}
	}
	return &source.Exhausted{Reason: Growing, Message: "no address is free yet: EC2 was asked for more, which has not arrived"}
}
