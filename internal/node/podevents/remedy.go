package podevents

// Busy is the cause of a wait when the daemon knows none.
const Busy = "busy"

// ConnectionsFull is the cause of GatewayFull.
const ConnectionsFull = "connections-full"

// UsedElsewhere is the cause of AddressShared.
const UsedElsewhere = "used-elsewhere"

// OnNode is another cause of AddressShared: the node has the address.
const OnNode = "address-on-node"

// Headings of docs/troubleshoot.md, under which the causes are.
const (
	inNoAddress = "No address"
	inNICs      = "No NIC"
	inVPCs      = "Conditions of VPCs and NICs"
	inEgress    = "No egress"
	inOnNode    = "A pod's address on the node"
	inPodSide   = "The pod's network namespace, the kernel, the record"
	inOperator  = "Reasons of conditions"
	inWaits     = "A pod waits"
	inPools     = "Pools and requests"
	inPoolWaits = "A pod waits for an address of a pool"
	inCutOff    = "A running pod is cut off"
	inAll       = "A pod stays in ContainerCreating"
)

// Remedy is what a person can do about a cause.
type Remedy struct {
	Do      string // a sentence; empty where the message ends with it
	Heading string // of docs/troubleshoot.md, which has more
}

// RemedyOf returns what to do about a cause. known is false for a cause without an entry, as from a
// newer operator.
func RemedyOf(cause string) (r Remedy, known bool) {
	if r, known = remedies[cause]; known {
		return r, true
	}
	return Remedy{Heading: inAll}, false
}

// Sentences of several causes.
const (
	nothing      = "No action is needed if this happens once; if it happens often, keep more addresses warm."
	wait         = "Wait a moment; no action is needed."
	seeDaemon    = "Check the log of berthd on the pod's node."
	seeOperator  = "Check the Lease, the Pods and the log of berth-operator."
	seeSpec      = "Correct spec.eni of the node's NodeNetwork."
	seeNodes     = "Check whether Node and NodeNetwork belong to the same instance."
	largerNode   = "Run fewer pods on the node, take a larger instance type, or use prefixes."
	correctPools = "Correct the AddressPool, or name another by the annotation berth.dev/pool."
)

// remedies by cause. TestEveryCauseHasARemedy finds the causes in the code.
var remedies = map[string]Remedy{
	// The node's addresses.
	"subnet-full":           {"", inNoAddress},
	"eni-limit":             {"", inNoAddress},
	"first-interface-index": {"", inNoAddress},
	"no-ipv6":               {"", inNoAddress},
	"no-ipv4":               {"", inNoAddress},
	"node-local-full":       {"", inNoAddress},
	"max-pods":              {"", inNoAddress},
	"cooling":               {"They become free within the cooling period.", inNoAddress},
	"throttled":             {"", inNoAddress},
	"permission":            {"", inNoAddress},
	"unreachable":           {"", inNoAddress},
	"refused":               {"", inNoAddress},
	"not-ready":             {seeDaemon, inNoAddress},
	"growing":               {nothing, inNoAddress},
	"starting":              {wait, inNoAddress},
	"source":                {seeDaemon, inNoAddress},
	"degraded":              {seeDaemon, inNoAddress},
	"crowded":               {"The kubelet retries; check why so many ADDs wait.", inNoAddress},

	// The node's NodeNetwork, and its conditions.
	"no-object":              {"", inWaits},
	"other-instance":         {"", inWaits},
	"no-operator":            {seeOperator, inWaits},
	"allocating":             {nothing, inOperator},
	"no-addresses":           {largerNode, inOperator},
	"at-limit":               {largerNode, inOperator},
	"limit-reached":          {largerNode, inOperator},
	"not-observed":           {seeOperator, inOperator},
	"instance-type-mismatch": {seeSpec, inOperator},
	"not-found":              {seeSpec, inOperator},
	"invalid-request":        {seeSpec, inOperator},
	"invalid-spec":           {seeSpec, inOperator},
	"conflict":               {"Check the instance's state in EC2.", inOperator},
	"transient":              {"Check whether berth-operator reaches EC2.", inOperator},
	"unknown":                {"Check whether berth-operator reaches EC2.", inOperator},
	"instance-gone":          {seeNodes, inOperator},
	"made-again-too-often":   {"Find out what deletes the node's NodeNetwork.", inOperator},
	"no-node":                {seeNodes, inOperator},
	"another-instance":       {seeNodes, inOperator},
	"not-proved":             {seeNodes, inOperator},
	"another-cluster":        {"Tag the instance, or correct the operator's setting.", inOperator},
	"already-claimed":        {seeNodes, inOperator},
	"not-written":            {"Install the roles, policies and CRDs of the operator's version.", inOperator},

	// A running pod whose network is gone.
	"eni-link-missing":   {"Find out what detached the ENI, or moved its link to another network namespace or driver.", inCutOff},
	"eni-detached":       {"Berth attaches the ENI again if it still exists; otherwise delete the pod. CloudTrail shows who detached it.", inCutOff},
	"address-unassigned": {"Delete the pod, so that another gets a new address.", inCutOff},

	// Address pools.
	"pool-exhausted":     {"", inPools},
	"pool-overlaps":      {correctPools, inPools},
	"pool-invalid":       {correctPools, inPools},
	"pool-deleted":       {correctPools, inPools},
	"pool-not-found":     {correctPools, inPools},
	"node-quota":         {"Wait until addresses of deleted pods have cooled, or raise spec.maxBlocksPerNode of the AddressPool.", inPools},
	"no-pods":            {seeDaemon, inPools},
	"too-many-requests":  {seeOperator, inPools},
	UsedElsewhere:        {"", inPools},
	"pool-not-allowed":   {"", inPoolWaits},
	"pool-unknown":       {"", inPoolWaits},
	"namespace-unknown":  {"Check whether the node reaches the API server.", inPoolWaits},
	"annotations-untold": {"", inPoolWaits},
	"pool-unsupported":   {"", inNoAddress},
	"pod-unnamed":        {"Use a container runtime that passes on the pod's name.", inPoolWaits},

	// NICs that are ports of a VPC.
	"no-nic":        {"Give one of them this name in the annotation berth.dev/nics.", inNICs},
	"nic-invalid":   {"Check the PodNIC that the message names.", inNICs},
	"nic-switch":    {"Check whether Open vSwitch runs on the pod's node and has the integration bridge.", inNICs},
	"nic-not-ready": {"Check whether the VPC's agent runs on the pod's node, or the trunk is attached to it.", inNICs},
	"no-vlan":       {"Load the kernel module 8021q on the pod's node.", inNICs},
	"port-in-use":   {"Wait a moment: the pod's former sandbox holds it until its DEL.", inNICs},
	"nic":           {seeDaemon, inNICs},

	// The conditions of PodNICs.
	"vpc-not-ready":   {"", inVPCs},
	"port-deleted":    {wait, inVPCs},
	"no-pod":          {wait, inVPCs},
	"unscheduled":     {wait, inVPCs},
	"no-host":         {"", inVPCs},
	"namespace-limit": {"Remove NICs of the namespace, or raise its limit in the VPC.", inVPCs},
	"node-limit":      {"Run fewer pods with NICs on the node.", inVPCs},
	"binding-failed":  {"Check whether the provider's agent runs on the pod's node.", inVPCs},
	"still-plugged":   {"Check whether the node that had the port is up.", inVPCs},
	// Their PodNICs.
	"no-podnic":         {"Check the Events of the pod, and whether berth-operator runs with the feature port.", inNICs},
	"podnic-gone":       {seeOperator, inNICs},
	"podnic-invalid":    {"Correct what the message names, in the VPC or in --ovs-bridges of berthd.", inNICs},
	"nic-refused":       {"Correct the annotation that the message names.", inNICs},
	"not-bound":         {seeOperator, inNICs},
	"no-link":           {"Check whether the VPC's agent runs on the pod's node, or the trunk is attached to it.", inNICs},
	"not-active":        {"Check OVN's controller, or Neutron's agent, on the pod's node.", inNICs},
	"ovsdb-unreachable": {"Check whether Open vSwitch runs on the pod's node.", inNICs},

	// Egress, and berth after another network's plugins.
	"no-fou":      {"Load the kernel modules that the message names on the pod's node, or schedule the pod elsewhere.", inEgress},
	"egress":      {seeDaemon, inEgress},
	"no-egress":   {"Start berthd with --egress again, or delete the pod.", inEgress},
	"chained":     {"", inEgress},
	"not-chained": {"", inEgress},

	"no-egressclient":    {"Check the Events of the pod, and whether berth-operator runs with the feature egress.", inEgress},
	"egress-unknown":     {wait, inEgress},
	"egress-invalid":     {"Correct what the message names in the Egress.", inEgress},
	"egress-annotation":  {"Correct the annotation that the message names.", inEgress},
	"egress-not-found":   {"Create the Egress, or correct the pod's annotation.", inEgress},
	"egress-not-allowed": {"Add the pod's namespace to spec.allowedNamespaces of the Egress, or use another Egress.", inEgress},
	"egress-overlaps":    {"Name only one of the Egresses whose destinations overlap.", inEgress},
	"egress-refused":     {seeOperator, inEgress},
	OnNode:               {"Remove the address from the node's link, and keep the node's network manager from adding it.", inOnNode},
	ConnectionsFull:      {"Give the Egress more replicas, or raise net.netfilter.nf_conntrack_max on the gateway's node.", inEgress},

	// Causes that are not about addresses.
	Busy:            {seeDaemon, inNoAddress},
	"deadline":      {"Check CPU and memory of the node.", inPodSide},
	"netns-missing": {"Check how the node's folder of network namespaces is mounted into berthd.", inPodSide},
	"netns-invalid": {"Check how the node's folder of network namespaces is mounted into berthd.", inPodSide},
	"datapath":      {seeDaemon, inPodSide},
	"kernel":        {"Check whether another program creates interfaces or routes of pods on the node.", inPodSide},
	"record":        {"Free space in the node's /run, and check whether it is writable.", inPodSide},
	"bad-request":   {"Correct what the message names.", inPodSide},
	"internal":      {"Report it with the log of berthd on the pod's node.", inPodSide},
	"panic":         {"Report it with the log of berthd on the pod's node.", inPodSide},
}
