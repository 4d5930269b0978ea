package demo

import (
	"context"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
)

// proof is a claim and the function that proves it, which returns figures. As in a test, the first failure ends it (see
// fail).
type proof struct {
	modes    []lab.Mode // modes in which it runs
	name     string
	try      func(context.Context, *stage) string
	families []ipfamily.Set // sets of pod families for which it runs; nil: all
}

func in(modes []lab.Mode, name string, try func(context.Context, *stage) string) proof {
	return proof{modes: modes, name: name, try: try}
}

// with returns the proof restricted to labs whose pods have one of these sets of families.
func (p proof) with(families ...ipfamily.Set) proof {
	p.families = families
	return p
}

var (
	routed     = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode} // pod addresses are routed between nodes
	withVPC    = []lab.Mode{lab.NodeMode, lab.OperatorMode}
	inNode     = []lab.Mode{lab.NodeMode}
	inOperator = []lab.Mode{lab.OperatorMode}
	inPool     = []lab.Mode{lab.PoolMode}
	inPort     = []lab.Mode{lab.PortMode}
)

// proofs in the order in which they run; later ones depend on earlier ones.
var proofs = []proof{
	in(inOperator, "nodes join, and cannot call EC2", join),
	in(inPort, "VPCs are Ready, by Keystone and Neutron", vpcsReady),
	in(inPort, "pods come up with default, chosen, fixed and users' ports", samplePods),
	in(inPort, "pod to pod in a VPC", vpcPodsTalk),
	in(inPort, "a security group drops, then allows", groups),
	in(inPort, "a VPC with the same addresses is not reached", inPorts(otherVPC)),
	in(inPort, "a PodNIC keeps its address on another node", inPorts(fixedNIC)),
	in(inPort, "a network policy closes a pod from the start, and changes", policyLife),
	in(inPort, "berthd killed with -9 under traffic: no reply is lost", killUnderTraffic),
	in(inPort, "a NIC is added to a running pod, responds, and is removed", inPorts(hotPlug)),
	in(inPort, "a port deleted in the cloud is created again", inPorts(portDeleted)),
	in(inPort, "a user's port survives its pod", inPorts(usersPort)),
	in(inPort, "operator killed with -9: a standby creates the next ports", killPortOperator),
	in(inPort, "pods, PodNICs, ports, OVSDB, kernel and records agree", agreement),

	in(inOperator, "a burst of pods gets addresses before its first ADD", burst),
	in(inPool, "nodes have blocks, and the router has learned them", firstBlocks),
	in(withVPC, "pods come up through CNI, on several ENIs", onSeveralENIs),
	in(inPool, "pods come up through CNI, from several blocks", fromSeveralBlocks),

	in(withVPC, "pod to pod on one node, within and across its ENIs", podToPodOnOneNode),
	in(withVPC, "pod to pod across nodes, every pair of ENIs", podToPodAcrossNodes),
	in(inPool, "pods to pods, nodes and the outside, over IPv4 and IPv6", everyFamily),
	in(routed, "pod to node and node to pod", podsAndNodes),
	in(withVPC, "pod to internet, seen as the node's primary address", toInternet).with(ipfamily.OnlyIPv4, ipfamily.Dual),
	in(withVPC, "dual stack: reached by both, IPv6 seen as the pod's own", everyFamily).with(ipfamily.Dual),
	in(withVPC, "pod to internet, with its own address", toInternet).with(ipfamily.OnlyIPv6),
	in(withVPC, "pod to the IPv4 internet, seen as the node", everyFamily).with(ipfamily.OnlyIPv6),
	in(withVPC, "pod to on-premises host and back, with its own address", onPremises),
	in(inPool, "the outside to pods, by their own addresses", fromOutside),
	in(inPool, "a packet to a free address is rejected, and does not loop", freeAddress),
	in(withVPC, "a service address is DNATed, the source address is kept", service),
	in(withVPC, "traffic to the primary interface is answered through it", nodePort),

	in(inPool, "a namespace's annotation chooses the pool", annotatedNamespace),
	in(inPool, "a pod's annotation chooses the pool if it is allowed", annotatedPod),
	in(routed, "a deleted pod's address cools down before reuse", cooling),
	in([]lab.Mode{lab.NodeMode, lab.PoolMode}, "berthd killed with -9 under traffic: no reply is lost", killUnderTraffic),

	in(inPool, "operator killed with -9: a standby allocates the next block", killPoolOperator),
	in(inPool, "an exhausted pool has a condition, and recovers", exhausted),
	in(inPool, "an empty block is released, and its route withdrawn", blockReturns),
	in(inPool, "a node whose Node was deleted keeps its blocks", nodeDeleted),
	// This proof is late because admission policies on pools and the daemons' watches take a while to recover: a
	// daemon that does not see the deletion of its Node claims no blocks.
	in(inPool, "API server down: ADD and DEL still work", poolWithoutAPI),
	in(inPool, "a lost node's blocks are released", nodeGone),

	in(inOperator, "operators killed with -9 under load: a standby takes over", killOperators),
	in(inOperator, "API server down: ADD and DEL still work", withoutAPI),
	in(withVPC, "EC2 throttled: a node joins, its pods come up", throttled),
	in(withVPC, "a Nitro node's one /80 is enough for all its pods", nitro).with(ipfamily.OnlyIPv6),
	in(inNode, "pods cannot reach the metadata service, nodes can", metadataBlocked),
	in(inOperator, "a full subnet has a condition, and recovers", fullSubnet),
	in(inOperator, "a terminated node's object and ENIs are deleted", scrapped),
	in(inOperator, "excess addresses are released, the ENI is deleted", shrink),

	in(inNode, "kernel, records, introspection and EC2 agree", agreement),
	in(inOperator, "kernel, records, introspection, objects and EC2 agree", agreement),
	in(inPool, "kernel, records, introspection, objects and router agree", agreement),
}

// proofsOf returns the proofs for a lab.
func proofsOf(o lab.Options) []proof {
	all := proofs
	switch {
	case o.Kubelets != nil:
		all = clusterProofs
	case ofPolicies(o):
		all = policyProofs
	case o.AmazonVPCCNI != "":
		all = migrationProofs
	case o.Egress:
		all = egressProofs
	case ofBranches(o):
		all = branchProofs
	}
	return slices.DeleteFunc(slices.Clone(all), func(p proof) bool {
		return !slices.Contains(p.modes, o.Mode) || p.families != nil && !slices.Contains(p.families, o.PodFamilies())
	})
}

// inPorts adapts a function for pods with ports to a proof.
func inPorts(try func(context.Context, *ports) string) func(context.Context, *stage) string {
	return func(ctx context.Context, s *stage) string { return try(ctx, s.ports) }
}

// Proof is a claim of the demo about a lab. Try returns figures.
type Proof struct {
	Name string
	Try  func(context.Context) (string, error)
}

// Story returns the proofs for a running lab, in their order: later ones depend on earlier ones.
func Story(l *lab.Lab) (list []Proof) {
	s := newStage(l, sizes[l.Mode], nil, nil)
	for _, p := range proofsOf(l.Options) {
		list = append(list, Proof{p.name, func(ctx context.Context) (string, error) { return s.try(ctx, p) }})
	}
	return list
}

// LabOptions returns the options of the demo's lab, merged with the caller's.
func LabOptions(o lab.Options) (lab.Options, error) {
	all, err := Options{Lab: o}.complete()
	return all.Lab, err
}
