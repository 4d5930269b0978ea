package demo

import (
	"context"
	"slices"

	"github.com/berthnet/berth/lab"
)

// proof is one claim and the way to try it, which returns figures. As in a test, the first
// failure ends it (see fail).
type proof struct {
	modes []lab.Mode // in which it is shown
	name  string
	try   func(context.Context, *stage) string
}

var (
	routed     = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode} // pods' addresses are routed between nodes
	withVPC    = []lab.Mode{lab.NodeMode, lab.OperatorMode}
	inNode     = []lab.Mode{lab.NodeMode}
	inOperator = []lab.Mode{lab.OperatorMode}
	inPool     = []lab.Mode{lab.PoolMode}
	inPort     = []lab.Mode{lab.PortMode}
)

// proofs in the order in which they are shown; later ones build on earlier ones.
var proofs = []proof{
	{inOperator, "nodes join, and cannot call EC2", join},
	{inPort, "VPCs are Ready, by Keystone and Neutron", vpcsReady},
	{inPort, "pods come up with default, chosen, fixed and users' ports", samplePods},
	{inPort, "pod to pod in a VPC", vpcPodsTalk},
	{inPort, "a security group drops, then allows", groups},
	{inPort, "a VPC with the same addresses is not reached", inPorts(otherVPC)},
	{inPort, "a PodNIC keeps its address on another node", inPorts(fixedNIC)},
	{inPort, "berthd killed with -9 under traffic: no reply is lost", killUnderTraffic},
	{inPort, "a NIC is added to a running pod, answers, and is removed", hotPlug},
	{inPort, "a port deleted in the cloud is created again", portDeleted},
	{inPort, "a user's port survives its pod", inPorts(usersPort)},
	{inPort, "operator killed with -9: a standby creates the next ports", killPortOperator},
	{inPort, "pods, PodNICs, ports, OVSDB, kernel and records agree", agreement},

	{inOperator, "a burst of pods gets addresses before its first ADD", burst},
	{inPool, "nodes have blocks, and the router has learned them", firstBlocks},
	{withVPC, "pods come up through CNI, on several ENIs", onSeveralENIs},
	{inPool, "pods come up through CNI, from several blocks", fromSeveralBlocks},

	{withVPC, "pod to pod on one node, within and across its ENIs", podToPodOnOneNode},
	{withVPC, "pod to pod across nodes, every pair of ENIs", podToPodAcrossNodes},
	{inPool, "pod to pod on one node and across nodes", podsToPods},
	{routed, "pod to node and node to pod", podsAndNodes},
	{withVPC, afterProof, toInternet},
	{withVPC, "pod to on-premises host and back, with its own address", onPremises},
	{inPool, "pod to the outside and back, with its own address", toOutside},
	{inPool, "a packet to a free address is rejected, and does not loop", freeAddress},
	{withVPC, "a service address is DNATed, the source is kept", service},
	{withVPC, "traffic to the primary interface is answered by it", nodePort},

	{inPool, "a namespace's annotation chooses the pool", annotatedNamespace},
	{inPool, "a pod's own annotation counts where the pool allows it", annotatedPod},
	{routed, "curl localhost:6666/ip-manager lists which pod has which address", introspection},
	{routed, "a deleted pod's address cools and is not reused", cooling},
	{[]lab.Mode{lab.NodeMode, lab.PoolMode}, "berthd killed with -9 under traffic: no reply is lost", killUnderTraffic},

	{inPool, "operator killed with -9: a standby allocates the next block", killPoolOperator},
	{inPool, "an exhausted pool has a condition, and recovers", exhausted},
	{inPool, "an empty block is released, and its route withdrawn", blockReturns},
	{inPool, "a node whose Node was deleted keeps its blocks", nodeDeleted},
	// After it, admission policies on pools and the daemons' watches take a while to work again:
	// a daemon that does not see that its Node is gone claims nothing.
	{inPool, "API server down: ADD and DEL still work", poolWithoutAPI},
	{inPool, "a lost node's blocks are released", nodeGone},

	{inOperator, "pods beyond the watermark make the operator grow", grow},
	{inOperator, "operator killed with -9 under load: a standby takes over", killOperator},
	{inOperator, "API server down: ADD and DEL still work", withoutAPI},
	{withVPC, beforeNitro, throttled},
	{inNode, "pods cannot reach the metadata service, nodes can", metadataBlocked},
	{inOperator, "a full subnet has a condition, and recovers", fullSubnet},
	{inOperator, "a terminated node's object and ENIs are deleted", scrapped},
	{inOperator, "excess is released by handshake, the ENI is deleted", shrink},

	{inNode, "kernel, records, introspection and EC2 agree", agreement},
	{inOperator, "kernel, records, introspection, objects and EC2 agree", agreement},
	{inPool, "kernel, records, introspection, objects and router agree", agreement},
}

// proofsOf are those that are shown in a lab.
func proofsOf(o lab.Options) []proof {
	all := proofs
	switch {
	case o.Kubelets != nil:
		all = clusterProofs
	case o.Egress:
		all = egressProofs
	case ofBranches(o):
		all = branchProofs
	case slices.Contains(withVPC, o.Mode):
		all = withFamilies(all, o.PodFamilies())
	}
	return slices.DeleteFunc(slices.Clone(all), func(p proof) bool { return !slices.Contains(p.modes, o.Mode) })
}

// inPorts is a proof that needs the pods with ports only.
func inPorts(try func(context.Context, *ports) string) func(context.Context, *stage) string {
	return func(ctx context.Context, s *stage) string { return try(ctx, s.ports) }
}

// Story lists the proofs of the demo for a lab that is up, in their order: later ones build on
// earlier ones.
func Story(l *lab.Lab) (list []NamedProof) {
	s := newStage(l, sizes[l.Mode], nil, nil)
	for _, p := range proofsOf(l.Options) {
		list = append(list, NamedProof{p.name, func(ctx context.Context) (string, error) { return s.try(ctx, p) }})
	}
	return list
}

// NamedProof is a proof of the demo on a lab. Try returns figures.
type NamedProof struct {
	Name string
	Try  func(context.Context) (string, error)
}

// LabOptions returns the options of the demo's lab, with the caller's.
func LabOptions(o lab.Options) (lab.Options, error) {
	all, err := Options{Lab: o}.complete()
	return all.Lab, err
}
