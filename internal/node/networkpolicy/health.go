package networkpolicy

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/source"
)

// ConditionReady is the type of the condition about network policies.
const ConditionReady = "NetworkPoliciesReady"

// awayFor is how long the operator may be disconnected before the condition reports it. A change of leaders takes less.
const awayFor = time.Minute

// Condition returns the condition ConditionReady.
func (e *Enforcer) Condition() source.Condition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record.condition(e.state.Version() != 0, e.Clock.Now())
}

// condition returns the condition ConditionReady. known is set if the policies of the node's pods are known.
func (r *record) condition(known bool, now time.Time) source.Condition {
	said := ""
	if r.lost != "" {
		said = ": " + r.lost
	}
	unwell := func(reason, format string, args ...any) source.Condition {
		return source.Condition{Type: ConditionReady, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.failure != "":
		return unwell("NotInForce", "the kernel has rejected changes of network policies since %s: %s", r.failing.UTC().Format(time.RFC3339), r.failure)
	case !known && r.changed.IsZero() && r.lost == "":
		return unwell("Starting", "berthd has not reached berth-operator yet")
	case !known:
		return unwell("Unknown", "berth-operator has not sent this node any network policies yet%s", said)
	case !r.connected && now.Sub(r.away()) >= awayFor:
		return unwell("OperatorAway", "the network policies that berth-operator sent before %s are in force; later changes have not arrived%s", r.away().UTC().Format(time.RFC3339), said)
	}
	return source.Condition{Type: ConditionReady, Healthy: true, Reason: "InForce"}
}
