package networkpolicy

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/source"
)

// ConditionReady is the type of the condition about network policies.
const ConditionReady = "NetworkPoliciesReady"

// awayFor is how long the operator may be away until the condition says so: a new leader takes less.
const awayFor = time.Minute

// Condition is the condition ConditionReady now.
func (e *Enforcer) Condition() source.Condition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record.condition(e.state.Version() != 0, e.Clock.Now())
}

// condition is the condition ConditionReady. known: it is known which policies the node's pods have.
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
		return unwell("Unknown", "berth-operator has not told this node yet which network policies its pods have%s", said)
	case !r.connected && now.Sub(r.away()) >= awayFor:
		return unwell("OperatorAway", "network policies are in force as berth-operator last told them, before %s; later changes are not known here%s", r.away().UTC().Format(time.RFC3339), said)
	}
	return source.Condition{Type: ConditionReady, Healthy: true, Reason: "InForce"}
}
