package config

import (
	"cmp"
	"time"
)

// The values of network-policy-unknown.
const (
	UnknownFail  = "fail"
	UnknownStart = "start"
)

// NetworkPolicySettings are how a node enforces network policies.
type NetworkPolicySettings struct {
	NetworkPolicies        bool
	NetworkPolicyWait      time.Duration
	NetworkPolicyUnknown   string // UnknownFail or UnknownStart
	NetworkPolicyDir       string
	NetworkPolicyToken     string // a file
	NetworkPolicyNamespace string // of the ConfigMap
}

func (c *NetworkPolicySettings) rows() []Setting {
	return []Setting{
		{Flag: "network-policies", Default: "false", bare: true, parse: boolean(&c.NetworkPolicies),
			Doc: "Enforce NetworkPolicies and ClusterNetworkPolicies on the pods of this node. berth-operator, which resolves their selectors, needs the setting of this name, too. Pods on the host's network are not affected. Without it, berthd removes what an earlier start left in the kernel."},
		{Flag: "network-policy-wait", Default: "10s", parse: duration(&c.NetworkPolicyWait, 0, 9*time.Minute),
			Doc: "With network-policies, how long an ADD waits until berth-operator has said which policies select the pod. network-policy-unknown says what happens after that."},
		{Flag: "network-policy-unknown", Default: UnknownFail, parse: oneOf(&c.NetworkPolicyUnknown, UnknownFail, UnknownStart),
			Doc: "With network-policies, what happens to an ADD whose pod's policies are not known in time, as when no operator runs. `fail`: it fails with code 11 (try again later). `start`: the pod starts without policies, open to everyone, and they are in force once they are known."},
		{Flag: "network-policy-dir", Default: "/var/lib/berth", parse: absolutePath(&c.NetworkPolicyDir, false),
			Doc: "With network-policies, the directory of the policies that were known last. It must outlast a reboot, so that pods start with their policies while berth-operator is away."},
		{Flag: "network-policy-token", Default: "/var/run/secrets/berth/network-policies/token", parse: absolutePath(&c.NetworkPolicyToken, false),
			Doc: "With network-policies, the file of the token that identifies this node to berth-operator: a service account token with the audience berth-network-policies that is bound to berthd's pod. It is read again for each connection."},
		{Flag: "network-policy-namespace", parse: checked(&c.NetworkPolicyNamespace, orEmpty(fileName)),
			Doc: "With network-policies, the namespace of the ConfigMap berth-network-policies, which says where berth-operator serves policies. Default: the namespace of berthd's pod, or kube-system outside a cluster."},
	}
}

// finish sets the default that depends on the daemon's own namespace.
func (c *NetworkPolicySettings) finish(own string) {
	c.NetworkPolicyNamespace = cmp.Or(c.NetworkPolicyNamespace, own, "kube-system")
}
