package introspect

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/policy"
)

// NetworkPoliciesPath is the path of the document about network policies.
const NetworkPoliciesPath = Path + "/network-policies"

// NetworkPolicies is what a node knows of the network policies of its pods, and what of it is in force. Lists are never
// null. They are sorted by namespace and name, sets by name.
type NetworkPolicies struct {
	Node    string    `json:"node"` // in Kubernetes
	Time    time.Time `json:"time"` // of the answer
	Enabled bool      `json:"enabled"`

	// Connected: the operator sends updates. Otherwise the policies that it sent last stay in force.
	Connected      bool      `json:"connected"`
	ConnectedSince time.Time `json:"connectedSince,omitzero"` // or disconnected since; zero: never connected since the start
	ConnectError   string    `json:"connectError,omitempty"`  // why it is not connected
	Version        uint64    `json:"version"`                 // of the last update; 0: nothing is known

	// Failure is why the last change could not be applied; empty: the kernel has everything that is known.
	Failure      string    `json:"failure,omitempty"`
	FailureSince time.Time `json:"failureSince,omitzero"` // the first of the failures in a row
	Applied      time.Time `json:"applied,omitzero"`      // the last change that succeeded

	Denied      []DeniedPackets    `json:"denied"`
	Attachments []PolicyAttachment `json:"attachments"`
	Policies    []NodePolicy       `json:"policies"` // those that select pods of the node
	Sets        []PolicySet        `json:"sets"`
}

// PolicyAttachment is an attachment with the policies that select its pod.
type PolicyAttachment struct {
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	UID       string       `json:"uid"`
	Addresses []netip.Addr `json:"addresses"`
	// Known: the operator has sent the policies that select the pod. Otherwise it is closed, or open with
	// --network-policy-unknown=start.
	Known   bool            `json:"known"`
	Ingress []AppliedPolicy `json:"ingress"` // in the order in which they are judged
	Egress  []AppliedPolicy `json:"egress"`
	// InForce: the kernel has these policies, since then. A restart of berthd counts as a change.
	InForce bool      `json:"inForce"`
	Since   time.Time `json:"since,omitzero"`
}

// PolicyRef names a policy object. A ClusterNetworkPolicy has no namespace.
type PolicyRef struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Compare orders by kind, namespace and name.
func (r PolicyRef) Compare(o PolicyRef) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// AppliedPolicy is a policy as it applies to a pod in one direction.
type AppliedPolicy struct {
	PolicyRef
	Tier     string `json:"tier"` // Admin, NetworkPolicy or Baseline
	Priority int32  `json:"priority"`
	Isolates bool   `json:"isolates"` // connections need a rule that accepts them
}

// NodePolicy is a policy that selects pods of the node.
type NodePolicy struct {
	PolicyRef
	Digest  string `json:"digest"`  // of its content, without the pods that it selects
	Pods    int    `json:"pods"`    // attachments that have it
	InForce int    `json:"inForce"` // of these, by the kernel
}

// DeniedPackets counts packets that were denied since the table was made. They are more than the connections, as TCP and
// others try again.
type DeniedPackets struct {
	Direction string `json:"direction"` // Ingress or Egress
	// Policies are the one whose rule denies the packets, or those of which none accepts them. Without any, the packets are all
	// of the direction.
	Policies []PolicyRef `json:"policies"`
	Packets  uint64      `json:"packets"`
}

// Names reports whether a policy is among Policies.
func (r DeniedPackets) Names(ref PolicyRef) bool { return slices.Contains(r.Policies, ref) }

// PolicySet is a set of addresses or named ports that policies refer to.
type PolicySet struct {
	Name     string `json:"name"`
	Elements int    `json:"elements"`
}

// PolicyJudgePath is the path of the judgement about a connection, with the query parameters "source", "destination",
// "protocol" (its number) and "port".
const PolicyJudgePath = NetworkPoliciesPath + "/judge"

// PolicyJudgement is what a node's policies say about a connection.
type PolicyJudgement struct {
	Node    string         `json:"node"` // in Kubernetes
	Time    time.Time      `json:"time"`
	Enabled bool           `json:"enabled"`
	Egress  PolicyDecision `json:"egress"`  // of the source's policies
	Ingress PolicyDecision `json:"ingress"` // of the destination's policies
	// Failure is why the kernel may judge otherwise; empty: it has everything that this judgement is based on.
	Failure string `json:"failure,omitempty"`
}

// PolicyDecision is what the policies of one end of a connection decide.
type PolicyDecision struct {
	// Namespace and Pod are the pod whose policies these are. They are empty if no pod that has policies has the address,
	// or none on this node.
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Allowed   bool       `json:"allowed"`
	Policy    *PolicyRef `json:"policy,omitempty"` // whose rule decides; nil: none does
	Tier      string     `json:"tier,omitempty"`
	Rule      int        `json:"rule"` // its index in the policy
	RuleName  string     `json:"ruleName,omitempty"`
	// Isolated: NetworkPolicies select the pod, and none of their rules accepts the connection.
	Isolated bool `json:"isolated,omitempty"`
}

// DecisionOf converts the decision of a pod's policies about connections of a direction. It leaves the pod empty.
func DecisionOf(of policy.Direction, d policy.Decision) PolicyDecision {
	out := PolicyDecision{Allowed: d.Allowed, Isolated: d.Isolated}
	if p := d.Policy; p != nil {
		out.Policy, out.Tier, out.Rule = &PolicyRef{Kind: p.Kind(), Namespace: p.Namespace, Name: p.Name}, p.Tier.String(), d.Rule
		out.RuleName = p.Rules[of][d.Rule].Name
	}
	return out
}
