package diagnose

// Verdict is the result of a diagnosis in one word. The values are a stable API.
type Verdict string

// Verdicts of a pod that needs no attention.
const (
	Works       Verdict = "Works"       // it has an address, and its path is intact
	Unchecked   Verdict = "Unchecked"   // it has an address, but its path could not be checked
	HostNetwork Verdict = "HostNetwork" // it uses the node's address
	Finished    Verdict = "Finished"    // its containers ended; its address is released
	Ending      Verdict = "Ending"      // it is being deleted
	Starting    Verdict = "Starting"    // its address is not in its status yet
	NotAsked    Verdict = "NotAsked"    // the kubelet has not requested an address yet
)

// Verdicts of a pod that needs attention.
const (
	NotScheduled      Verdict = "NotScheduled"
	NodeGone          Verdict = "NodeGone"     // the pod's Node does not exist
	NodeNotReady      Verdict = "NodeNotReady" // the kubelet starts no pods
	NoDaemon          Verdict = "NoDaemon"     // no berthd pod runs on the node
	DaemonNotReady    Verdict = "DaemonNotReady"
	NoNodeNetwork     Verdict = "NoNodeNetwork"
	OtherInstance     Verdict = "OtherInstance" // the NodeNetwork belongs to another instance
	Degraded          Verdict = "Degraded"      // the operator cannot get addresses
	AtCapacity        Verdict = "AtCapacity"    // the node has reached its limit of addresses
	NoOperator        Verdict = "NoOperator"
	NoPool            Verdict = "NoPool"
	PoolNotAllowed    Verdict = "PoolNotAllowed" // the pod's namespace may not use the pool
	PoolNotReady      Verdict = "PoolNotReady"
	PoolExhausted     Verdict = "PoolExhausted"
	RequestRefused    Verdict = "RequestRefused"    // for a block
	RequestUnanswered Verdict = "RequestUnanswered" // likewise
	Waiting           Verdict = "Waiting"           // its ADD waits for an address; the summary says why
	Refused           Verdict = "Refused"           // its ADD failed
	PathBroken        Verdict = "PathBroken"        // the kernel's state differs from the desired state
	NoPodNIC          Verdict = "NoPodNIC"          // the operator has created none for a NIC that the pod requests
	VPCNotReady       Verdict = "VPCNotReady"       // or does not exist
	NoPort            Verdict = "NoPort"            // a NIC has no port at the provider
	PortDiffers       Verdict = "PortDiffers"       // the port at the provider differs from the PodNIC
	NotBound          Verdict = "NotBound"          // its port, to the pod's node
	BoundElsewhere    Verdict = "BoundElsewhere"    // to another node
	NotPlugged        Verdict = "NotPlugged"        // by the node
	PlugFailed        Verdict = "PlugFailed"        // as the node says
	NotActive         Verdict = "NotActive"         // a port is plugged, but the provider does not report it active
	NoEgressClient    Verdict = "NoEgressClient"    // the operator has created none for a pod that names Egresses
	NotLookedAt       Verdict = "NotLookedAt"       // no operator has reported on its EgressClient
	EgressRefused     Verdict = "EgressRefused"     // it may not use an Egress
	NotSetUp          Verdict = "NotSetUp"          // its tunnels to gateways, by its node
	NotServed         Verdict = "NotServed"         // by gateways
	NoGateway         Verdict = "NoGateway"         // no gateway of its Egress is ready
	NotOfBerth        Verdict = "NotOfBerth"        // another plugin assigned the address
	AddressesDisagree Verdict = "AddressesDisagree" // the pod's status differs from its node's record
	NoPolicies        Verdict = "NoPolicies"        // its network policies are unknown, or not in force
)

// Diagnosis is the result for a pod, PodNIC or EgressClient.
type Diagnosis struct {
	Verdict Verdict `json:"verdict"`
	OK      bool    `json:"ok"`               // it needs no attention
	Summary string  `json:"summary"`          // one or two sentences
	Remedy  string  `json:"remedy,omitempty"` // remedy
	See     string  `json:"see,omitempty"`    // page and heading of the documentation
}

// fine returns a diagnosis that needs no attention.
func fine(v Verdict, summary string) *Diagnosis {
	return &Diagnosis{Verdict: v, OK: true, Summary: summary}
}

// trouble returns a diagnosis that needs attention.
func trouble(v Verdict, summary, remedy, see string) *Diagnosis {
	return &Diagnosis{Verdict: v, Summary: summary, Remedy: remedy, See: see}
}

// Pages and headings of the documentation.
const (
	seeNoNIC     = `docs/troubleshoot/pods.md, "No NIC"`
	seeNICs      = `docs/troubleshoot/ports.md, "Conditions of VPCs and NICs"`
	seeNoEgress  = `docs/troubleshoot/pods.md, "No egress"`
	seeEgresses  = `docs/troubleshoot/egress.md, "Conditions of Egresses"`
	seeWaits     = `docs/troubleshoot/pods.md, "No address"`
	seeDaemon    = `docs/troubleshoot/pods.md, "berthd does not answer"`
	seeSandbox   = `docs/troubleshoot/pods.md, "A pod stays in ContainerCreating"`
	seeNode      = `docs/troubleshoot/nodes.md, "The node stays NotReady"`
	seePackets   = `docs/troubleshoot/packets.md, "Packets do not arrive"`
	seeOperator  = `docs/troubleshoot/operator-mode.md, "A pod waits"`
	seeReasons   = `docs/troubleshoot/operator-mode.md, "Reasons of conditions"`
	seePools     = `docs/troubleshoot/pools.md, "Pools and requests"`
	seePoolWaits = `docs/troubleshoot/pools.md, "A pod waits for an address of a pool"`

	seePolicies      = `docs/troubleshoot/pods.md, "Network policies"`
	seeEgressClients = `docs/troubleshoot/egress.md, "Conditions of EgressClients"`
)

// Pod diagnoses a pod. The first check that applies determines the result: first the checks of the
// pod itself, then those of its node, then those of the node's dependencies.
func Pod(f Facts) Diagnosis {
	steps := []func(Facts) *Diagnosis{finished, hostNetwork, notScheduled}
	if len(addressesOf(f)) > 0 {
		steps = append(steps, func(f Facts) *Diagnosis { return besides(f, hasAddress(f)) })
	} else {
		steps = append(steps, attached, ending, nodeGone, noDaemon, daemonNotReady, nics, egressNamed, policiesBefore, refused,
			operatorMode, poolMode, waiting, nodeNotReady)
	}
	for _, step := range steps {
		if d := step(f); d != nil {
			return *d
		}
	}
	return *notAsked(f)
}
