package nicpolicy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// The reasons of a NICPolicy's condition Ready.
const (
	ReasonReady             = "Ready"
	ReasonStarting          = "Starting"          // the API server does not ask about its pods yet; Ready is Unknown
	ReasonVPCNotFound       = "VPCNotFound"       // pods that it selects are refused
	ReasonNotPossible       = "NotPossible"       // pods that it selects are refused, or wait
	ReasonOperatorNamespace = "OperatorNamespace" // no policy is for it
)

// verdict is whether a NICPolicy is in force.
type verdict struct{ reason, message string }

func (v verdict) status() metav1.ConditionStatus {
	switch v.reason {
	case ReasonReady:
		return metav1.ConditionTrue
	case ReasonStarting:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

// verdictOf is that of a NICPolicy of a namespace, with all VPCs that there are. unasked is
// why the webhook is not asked about its pods; nil: it is.
func verdictOf(o *v1alpha1.NICPolicy, of nicrequest.Namespace, vpcs []v1alpha1.VPC, operator string, unasked error) verdict {
	if of.Name == operator {
		return verdict{ReasonOperatorNamespace, fmt.Sprintf("namespace %s is the operator's, whose pods could not come without it: make the policy, and its pods, in another", operator)}
	}
	p, err := read(o)
	if err != nil {
		return verdict{ReasonNotPossible, err.Error()}
	}
	vpc, err := nicrequest.Choice{Counts: []nicrequest.Policy{p}}.VPC(of, vpcs)
	if err != nil {
		return verdict{ReasonVPCNotFound, err.Error()}
	}
	if err := nicrequest.CheckPolicy(p, of, vpc).Err(); err != nil {
		return verdict{ReasonNotPossible, err.Error()}
	}
	if unasked != nil {
		return verdict{ReasonStarting, unasked.Error()}
	}
	return verdict{ReasonReady, "pods that it selects get a NIC in VPC " + vpc.Name + " when they are made"}
}
