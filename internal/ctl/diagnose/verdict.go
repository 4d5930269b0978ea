package diagnose

// Verdict is a word for what was found. The words are stable.
type Verdict string

// The verdicts of a pod that is as it should be, or soon.
const (
	Works       Verdict = "Works"       // it has an address, and its path was checked
	Unchecked   Verdict = "Unchecked"   // it has an address; the path could not be checked
	HostNetwork Verdict = "HostNetwork" // it has the node's
	Finished    Verdict = "Finished"    // its containers ended; its address went back
	Ending      Verdict = "Ending"      // it is being deleted
	Starting    Verdict = "Starting"    // it has an address that is not in its status yet
	NotAsked    Verdict = "NotAsked"    // its kubelet has not asked for an address yet
)

// The verdicts of a pod that somebody has to see to.
const (
	NotScheduled      Verdict = "NotScheduled"
	NodeGone          Verdict = "NodeGone"     // there is no Node of the name
	NodeNotReady      Verdict = "NodeNotReady" // nobody starts its containers
	NoDaemon          Verdict = "NoDaemon"     // no berthd on the node
	DaemonNotReady    Verdict = "DaemonNotReady"
	NoNodeNetwork     Verdict = "NoNodeNetwork"
	OtherInstance     Verdict = "OtherInstance" // the NodeNetwork is another instance's
	Degraded          Verdict = "Degraded"      // EC2 or the object keep the operator from growing
	AtCapacity        Verdict = "AtCapacity"    // the node may have no more addresses
	NoOperator        Verdict = "NoOperator"
	NoPool            Verdict = "NoPool"
	PoolNotAllowed    Verdict = "PoolNotAllowed" // for pods of this namespace
	PoolNotReady      Verdict = "PoolNotReady"
	PoolExhausted     Verdict = "PoolExhausted"
	RequestRefused    Verdict = "RequestRefused"    // for a block
	RequestUnanswered Verdict = "RequestUnanswered" // likewise
	Waiting           Verdict = "Waiting"           // for an address; the summary says why
	Refused           Verdict = "Refused"           // the plugin or the daemon failed the ADD
	PathBroken        Verdict = "PathBroken"        // the kernel is not as it was set up
	NoPodNIC          Verdict = "NoPodNIC"          // the operator has made none for a NIC that it asks for
	VPCNotReady       Verdict = "VPCNotReady"       // or there is none
	NoPort            Verdict = "NoPort"            // a NIC of it has none
	PortDiffers       Verdict = "PortDiffers"       // the one at the provider is another than the PodNIC says
	NotBound          Verdict = "NotBound"          // its port, to the pod's node
	BoundElsewhere    Verdict = "BoundElsewhere"    // to another node
	NotPlugged        Verdict = "NotPlugged"        // by the node
	PlugFailed        Verdict = "PlugFailed"        // as the node says
	NotActive         Verdict = "NotActive"         // plugged, and the provider does not say that it carries packets
	NoEgressClient    Verdict = "NoEgressClient"    // the operator has made none for a pod that names Egresses
	NotLookedAt       Verdict = "NotLookedAt"       // no operator has said how its EgressClient does
	EgressRefused     Verdict = "EgressRefused"     // it may not use an Egress
	NotSetUp          Verdict = "NotSetUp"          // its tunnels to gateways, by its node
	NotServed         Verdict = "NotServed"         // by gateways
	NoGateway         Verdict = "NoGateway"         // of an Egress that it uses is ready
	NotOfBerth        Verdict = "NotOfBerth"        // another plugin gave the address
	AddressesDisagree Verdict = "AddressesDisagree" // the pod's status and its node's record
)

// Diagnosis is what was found about a pod.
type Diagnosis struct {
	Verdict Verdict `json:"verdict"`
	OK      bool    `json:"ok"`               // nobody has to do anything
	Summary string  `json:"summary"`          // in plain words
	Remedy  string  `json:"remedy,omitempty"` // what to do
	See     string  `json:"see,omitempty"`    // the page and heading that say more
}

// fine is a diagnosis that asks for nothing.
func fine(v Verdict, summary string) *Diagnosis {
	return &Diagnosis{Verdict: v, OK: true, Summary: summary}
}

// trouble is one that asks for something.
func trouble(v Verdict, summary, remedy, see string) *Diagnosis {
	return &Diagnosis{Verdict: v, Summary: summary, Remedy: remedy, See: see}
}

// Headings of docs/troubleshoot.md.
const (
	seeNoNIC     = `docs/troubleshoot.md, "No NIC"`
	seeNICs      = `docs/troubleshoot.md, "Conditions of VPCs and NICs"`
	seeNoEgress  = `docs/troubleshoot.md, "No egress"`
	seeEgresses  = `docs/troubleshoot.md, "Conditions of Egresses"`
	seeWaits     = `docs/troubleshoot.md, "No address"`
	seeDaemon    = `docs/troubleshoot.md, "berthd is not there"`
	seeSandbox   = `docs/troubleshoot.md, "A pod stays in ContainerCreating"`
	seeNode      = `docs/troubleshoot.md, "The node stays NotReady"`
	seePackets   = `docs/troubleshoot.md, "Packets do not arrive"`
	seeOperator  = `docs/troubleshoot.md, "A pod waits"`
	seeReasons   = `docs/troubleshoot.md, "Reasons of conditions"`
	seePools     = `docs/troubleshoot.md, "Pools and requests"`
	seePoolWaits = `docs/troubleshoot.md, "A pod waits for an address of a pool"`

	seeEgressClients = `docs/troubleshoot.md, "Conditions of EgressClients"`
)
