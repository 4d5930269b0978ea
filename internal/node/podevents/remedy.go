package podevents

import "sync"

// Busy is the cause of a wait that the daemon cannot explain.
const Busy = "busy"

// ConnectionsFull is the cause of GatewayFull.
const ConnectionsFull = "connections-full"

// UsedElsewhere is the cause of AddressShared.
const UsedElsewhere = "used-elsewhere"

// OnNode is another cause of AddressShared: the node itself has the address.
const OnNode = "address-on-node"

// Pages and headings of the documentation that describe the causes.
const (
	inNoAddress = `docs/troubleshoot/pods.md, "No address"`
	inNICs      = `docs/troubleshoot/pods.md, "No NIC"`
	inVPCs      = `docs/troubleshoot/ports.md, "Conditions of VPCs and NICs"`
	inEgress    = `docs/troubleshoot/pods.md, "No egress"`
	inOnNode    = `docs/troubleshoot/packets.md, "A node link has a pod's address"`
	inPolicies  = `docs/troubleshoot/pods.md, "Network policies"`
	inPodSide   = `docs/troubleshoot/pods.md, "Other failures of ADD and CHECK"`
	inOperator  = `docs/troubleshoot/operator-mode.md, "Reasons of conditions"`
	inWaits     = `docs/troubleshoot/operator-mode.md, "A pod waits"`
	inPools     = `docs/troubleshoot/pools.md, "Pools and requests"`
	inPoolWaits = `docs/troubleshoot/pools.md, "A pod waits for an address of a pool"`
	inCutOff    = `docs/troubleshoot/nodes.md, "A running pod is cut off"`
	inAll       = `docs/troubleshoot/pods.md, "A pod stays in ContainerCreating"`
)

// Remedy is the remedy for a cause.
type Remedy struct {
	Do  string // a sentence; empty if the message includes it
	See string // page and heading of the documentation with details
}

// RemedyOf returns the remedy for a cause. known is false for a cause without an entry, for example one that
// a newer operator reports.
func RemedyOf(cause string) (r Remedy, known bool) {
	if r, known = remedies()[cause]; known {
		return r, true
	}
	return Remedy{See: inAll}, false
}

// Remedies of several causes.
const (
	nothing      = "No action is needed if this happens once; if it happens often, keep more addresses warm."
	wait         = "Wait a moment; no action is needed."
	seeDaemon    = "Check the log of berthd on the pod's node."
	seeOperator  = "Check the Lease, the Pods and the log of berth-operator."
	seeSpec      = "Correct spec.eni of the node's NodeNetwork."
	seeNodes     = "Check whether Node and NodeNetwork belong to the same instance."
	largerNode   = "Run fewer pods on the node, take a larger instance type, or use prefixes."
	correctPools = "Correct the AddressPool, or select another one with the annotation berth.dev/pool."
)

// advice groups causes by remedy. TestEveryCauseHasRemedy finds the causes in the code.
var advice = []struct {
	Remedy
	causes []string
}{
	// Causes concerning the node's addresses.
	{Remedy{"", inNoAddress}, []string{
		"subnet-full", "eni-limit", "first-interface-index", "no-ipv6", "no-ipv4", "node-local-full", "max-pods", "throttled",
		"permission", "unreachable", "refused",
	}},
	{Remedy{"They become free within the cooling period.", inNoAddress}, []string{"cooling"}},
	{Remedy{seeDaemon, inNoAddress}, []string{"not-ready", "source", "degraded"}},
	{Remedy{nothing, inNoAddress}, []string{"growing"}},
	{Remedy{wait, inNoAddress}, []string{"starting"}},
	{Remedy{"The kubelet retries; check why so many ADDs wait.", inNoAddress}, []string{"crowded"}},
	// Causes concerning the node's NodeNetwork and its conditions.
	{Remedy{"", inWaits}, []string{"no-object", "other-instance"}},
	{Remedy{seeOperator, inWaits}, []string{"no-operator"}},
	{Remedy{nothing, inOperator}, []string{"allocating"}},
	{Remedy{largerNode, inOperator}, []string{"no-addresses", "at-limit", "limit-reached"}},
	{Remedy{seeOperator, inOperator}, []string{"not-observed"}},
	{Remedy{seeSpec, inOperator}, []string{"instance-type-mismatch", "not-found", "invalid-request", "invalid-spec"}},
	{Remedy{"Check the instance's state in EC2.", inOperator}, []string{"conflict"}},
	{Remedy{"Check whether berth-operator reaches EC2.", inOperator}, []string{"transient", "unknown"}},
	{Remedy{seeNodes, inOperator}, []string{"instance-gone", "no-node", "another-instance", "not-proved", "already-claimed"}},
	{Remedy{"Find out what deletes the node's NodeNetwork.", inOperator}, []string{"made-again-too-often"}},
	{Remedy{"Tag the instance, or correct the operator's setting.", inOperator}, []string{"another-cluster"}},
	{Remedy{"Install the roles, policies and CRDs of the operator's version.", inOperator}, []string{"not-written"}},
	// Causes concerning a running pod that lost its network.
	{Remedy{"Find out what detached the ENI, or moved its link to another network namespace or driver.", inCutOff}, []string{"eni-link-missing"}},
	{Remedy{"Berth attaches the ENI again if it still exists; otherwise delete the pod. CloudTrail shows who detached it.", inCutOff}, []string{
		"eni-detached",
	}},
	{Remedy{"Delete the pod, so that another gets a new address.", inCutOff}, []string{"address-unassigned"}},
	// Causes concerning address pools.
	{Remedy{"", inPools}, []string{"pool-exhausted", UsedElsewhere}},
	{Remedy{correctPools, inPools}, []string{"pool-overlaps", "pool-invalid", "pool-deleted", "pool-not-found"}},
	{Remedy{"Wait until addresses of deleted pods have cooled, or raise spec.maxBlocksPerNode of the AddressPool.", inPools}, []string{"node-quota"}},
	{Remedy{seeDaemon, inPools}, []string{"no-pods"}},
	{Remedy{seeOperator, inPools}, []string{"too-many-requests"}},
	{Remedy{"", inPoolWaits}, []string{"pool-not-allowed", "pool-unknown", "annotations-untold"}},
	{Remedy{"Check whether the node reaches the API server.", inPoolWaits}, []string{"namespace-unknown"}},
	{Remedy{"", inNoAddress}, []string{"pool-unsupported"}},
	{Remedy{"Use a container runtime that passes on the pod's name.", inPoolWaits}, []string{"pod-unnamed"}},
	// Causes concerning NICs that are ports of a VPC.
	{Remedy{"Give one of them this name in the annotation berth.dev/nics.", inNICs}, []string{"no-nic"}},
	{Remedy{"Check the PodNIC that the message names.", inNICs}, []string{"nic-invalid"}},
	{Remedy{"Check whether Open vSwitch runs on the pod's node and has the integration bridge.", inNICs}, []string{"nic-switch"}},
	{Remedy{"Check whether the VPC's agent runs on the pod's node, or the trunk is attached to it.", inNICs}, []string{"nic-not-ready"}},
	{Remedy{"Load the kernel module 8021q on the pod's node.", inNICs}, []string{"no-vlan"}},
	{Remedy{"Wait a moment: the pod's previous sandbox uses the port until it is deleted.", inNICs}, []string{"port-in-use"}},
	{Remedy{seeDaemon, inNICs}, []string{"nic"}},
	// Conditions of PodNICs.
	{Remedy{"", inVPCs}, []string{"vpc-not-ready", "no-host"}},
	{Remedy{wait, inVPCs}, []string{"port-deleted", "no-pod", "unscheduled"}},
	{Remedy{"Remove NICs of the namespace, or raise its limit in the VPC.", inVPCs}, []string{"namespace-limit"}},
	{Remedy{"Run fewer pods with NICs on the node.", inVPCs}, []string{"node-limit"}},
	{Remedy{"Check whether the provider's agent runs on the pod's node.", inVPCs}, []string{"binding-failed"}},
	{Remedy{"Check whether the node that had the port is up.", inVPCs}, []string{"still-plugged"}},
	// Causes concerning PodNICs.
	{Remedy{"Check the Events of the pod, and whether berth-operator runs with the feature port.", inNICs}, []string{"no-podnic"}},
	{Remedy{seeOperator, inNICs}, []string{"podnic-gone", "not-bound"}},
	{Remedy{"Correct what the message names, in the VPC or in --ovs-bridges of berthd.", inNICs}, []string{"podnic-invalid"}},
	{Remedy{"Correct the annotation that the message names.", inNICs}, []string{"nic-refused"}},
	{Remedy{"Check whether the VPC's agent runs on the pod's node, or the trunk is attached to it.", inNICs}, []string{"no-link"}},
	{Remedy{"Check OVN's controller, or Neutron's agent, on the pod's node.", inNICs}, []string{"not-active"}},
	{Remedy{"Check whether Open vSwitch runs on the pod's node.", inNICs}, []string{"ovsdb-unreachable"}},
	// Causes concerning egress, and berth chained after another CNI plugin.
	{Remedy{"Load the kernel modules that the message names on the pod's node, or schedule the pod elsewhere.", inEgress}, []string{"no-fou"}},
	{Remedy{seeDaemon, inEgress}, []string{"egress"}},
	{Remedy{"Start berthd with --egress again, or delete the pod.", inEgress}, []string{"no-egress"}},
	{Remedy{"", inEgress}, []string{"chained", "not-chained"}},
	{Remedy{"Check the Events of the pod, and whether berth-operator runs with the feature egress.", inEgress}, []string{"no-egressclient"}},
	{Remedy{wait, inEgress}, []string{"egress-unknown"}},
	{Remedy{"Check that a berth-operator pod is ready, and that the pod's node reaches it.", inPolicies}, []string{"policies-unknown"}},
	{Remedy{seeDaemon, inPolicies}, []string{"policies-not-in-force"}},
	{Remedy{"Correct what the message names in the Egress.", inEgress}, []string{"egress-invalid"}},
	{Remedy{"Correct the annotation that the message names.", inEgress}, []string{"egress-annotation"}},
	{Remedy{"Create the Egress, or correct the pod's annotation.", inEgress}, []string{"egress-not-found"}},
	{Remedy{"Add the pod's namespace to spec.allowedNamespaces of the Egress, or use another Egress.", inEgress}, []string{"egress-not-allowed"}},
	{Remedy{"Name only one of the Egresses whose destinations overlap.", inEgress}, []string{"egress-overlaps"}},
	{Remedy{seeOperator, inEgress}, []string{"egress-refused"}},
	{Remedy{"Remove the address from the node's link, and keep the node's network manager from adding it.", inOnNode}, []string{OnNode}},
	{Remedy{"Give the Egress more replicas, or raise net.netfilter.nf_conntrack_max on the gateway's node.", inEgress}, []string{ConnectionsFull}},
	// Causes that do not concern addresses.
	{Remedy{seeDaemon, inNoAddress}, []string{Busy}},
	{Remedy{"Check CPU and memory of the node.", inPodSide}, []string{"deadline"}},
	{Remedy{"Check how the node's folder of network namespaces is mounted into berthd.", inPodSide}, []string{"netns-missing", "netns-invalid"}},
	{Remedy{seeDaemon, inPodSide}, []string{"datapath"}},
	{Remedy{"Check whether another program creates interfaces or routes of pods on the node.", inPodSide}, []string{"kernel"}},
	{Remedy{"Free space in the node's /run, and check whether it is writable.", inPodSide}, []string{"record"}},
	{Remedy{"Correct what the message names.", inPodSide}, []string{"bad-request"}},
	{Remedy{"Report a bug, and attach the log of berthd on the pod's node.", inPodSide}, []string{"internal", "panic"}},
}

// remedies maps causes to remedies.
var remedies = sync.OnceValue(func() map[string]Remedy {
	all := map[string]Remedy{}
	for _, a := range advice {
		for _, cause := range a.causes {
			all[cause] = a.Remedy
		}
	}
	return all
})
