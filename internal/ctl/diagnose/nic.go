package diagnose

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Verdicts of a NIC that needs no attention, in addition to Works, Starting and Ending.
const (
	Unused      Verdict = "Unused"      // no pod uses it
	Unscheduled Verdict = "Unscheduled" // its pod is not scheduled yet
)

// Verdicts of a NIC that needs attention, in addition to those of its pod.
const (
	PodMissing  Verdict = "PodMissing"  // its pod is gone, but its port is still bound
	NotReleased Verdict = "NotReleased" // its port is not released
)

// patience is the expected maximum duration of each step of a NIC's life cycle. The operator waits up to
// a minute for an unresponsive node (--unplug-grace); everything else takes seconds.
const patience = 90 * time.Second

// NICFacts are the inputs for the diagnosis of a PodNIC.
type NICFacts struct {
	Now       time.Time
	NIC       *v1alpha1.PodNIC
	VPC       Fact[v1alpha1.VPC] // the VPC that it is in
	Pod       Fact[corev1.Pod]   // the pod that the PodNIC is for, or that uses it
	Node      Fact[corev1.Node]  // of the pod
	Daemon    Fact[Daemon]       // of that node
	Operators Fact[Operators]
}

// NIC diagnoses a PodNIC. The first check that applies determines the result.
func NIC(f NICFacts) Diagnosis {
	for _, step := range []func(NICFacts) *Diagnosis{
		releasing, podGone, ofVPC, portOf, unused, elsewhere, boundOf, notBound, notPlugged, notActive,
	} {
		if d := step(f); d != nil {
			return *d
		}
	}
	return *fine(Works, fmt.Sprintf("Port %s is plugged on node %s and carries packets.", f.NIC.Status.PortID, f.NIC.Status.NodeName))
}

// PodOf returns the pod that a PodNIC is for, or that uses it, or nil.
func PodOf(o *v1alpha1.PodNIC) *v1alpha1.PodReference {
	if o.Spec.Pod != nil {
		return o.Spec.Pod
	}
	return o.Status.Pod
}

func (f NICFacts) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(f.NIC.Status.Conditions, kind)
}

// late reports whether a state has lasted longer than patience.
func (f NICFacts) late(since time.Time) bool { return f.Now.Sub(since) > patience }

// since returns the time of the NIC's last progress: its creation, the scheduling of its pod, or
// the last change of a condition.
func (f NICFacts) since() time.Time {
	at := f.NIC.CreationTimestamp.Time
	later := func(t time.Time) {
		if t.After(at) {
			at = t
		}
	}
	if f.Pod.Value != nil {
		for _, c := range f.Pod.Value.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				later(c.LastTransitionTime.Time)
			}
		}
	}
	for _, c := range f.NIC.Status.Conditions {
		later(c.LastTransitionTime.Time)
	}
	return at
}

func (f NICFacts) age(since time.Time) time.Duration {
	return max(0, f.Now.Sub(since)).Round(time.Second)
}

func releasing(f NICFacts) *Diagnosis {
	st := f.NIC.Status
	if f.NIC.DeletionTimestamp == nil && st.Phase != v1alpha1.PhaseReleasing {
		return nil
	}
	since := f.since()
	if t := f.NIC.DeletionTimestamp; t != nil {
		since = t.Time
	}
	if !f.late(since) {
		return fine(Ending, "Its port is being released.")
	}
	if c := f.condition(v1alpha1.ConditionBound); c != nil && c.Reason == "StillPlugged" {
		return trouble(NotReleased, fmt.Sprintf("Its port has not been released for %s: %s", f.age(since), c.Message), remedies[c.Reason], seeNICs)
	}
	if n := f.NIC.Status.Node; n != nil && n.Reason != "" && n.State != v1alpha1.NodeUnplugged {
		return trouble(NotReleased, fmt.Sprintf("Its port has not been released for %s: node %s cannot unplug it: %s", f.age(since), f.NIC.Status.NodeName, n.Message), plugRemedy(n.Reason), seeNICs)
	}
	if c := f.condition(v1alpha1.ConditionPortReady); c != nil && c.Status == metav1.ConditionFalse {
		return trouble(NotReleased, fmt.Sprintf("Its port has not been released for %s (%s): %s", f.age(since), c.Reason, c.Message), Remedy(c.Reason), seeNICs)
	}
	return trouble(NotReleased, fmt.Sprintf("Its port has not been released for %s.", f.age(since)),
		"Check whether berth-operator is ready and the leader, and its log: it removes the finalizer once the port is deleted or unbound.", seeNICs)
}

// podGone diagnoses a NIC whose pod is gone although its port is still bound.
func podGone(f NICFacts) *Diagnosis {
	ref := PodOf(f.NIC)
	if ref == nil || f.NIC.Status.Phase != v1alpha1.PhaseActive && f.NIC.Status.Phase != v1alpha1.PhaseBound {
		return nil
	}
	gone := f.Pod.Absent() || f.Pod.Value != nil && string(f.Pod.Value.UID) != ref.UID
	if !gone || !f.late(f.since()) {
		return nil
	}
	return trouble(PodMissing, fmt.Sprintf("It is %s on node %s, but its pod %s is gone.", f.NIC.Status.Phase, f.NIC.Status.NodeName, ref.Name),
		"Nothing, if the pod ended moments ago. Otherwise check whether berth-operator is ready and the leader, and its log.", seeNICs)
}

func ofVPC(f NICFacts) *Diagnosis {
	name := f.NIC.Spec.VPC
	if f.VPC.Absent() {
		return trouble(VPCNotReady, fmt.Sprintf("VPC %s does not exist.", name), "Create it, or correct the annotation berth.dev/vpc of the pod or its namespace.", seeNICs)
	}
	if f.VPC.Value == nil || f.NIC.Status.Plug != nil { // existing NICs keep working
		return nil
	}
	c := meta.FindStatusCondition(f.VPC.Value.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason == "NoSubnet" || c.Reason == "SubnetNotFound" {
		return nil
	}
	return trouble(VPCNotReady, fmt.Sprintf("VPC %s is not ready (%s): %s", name, c.Reason, c.Message), Remedy(c.Reason), seeNICs)
}

// differs are the reasons of a port that differs from its PodNIC.
var differs = map[string]bool{"PortDeleted": true, "MACTaken": true, "Conflict": true, "UnexpectedAnswer": true}

func portOf(f NICFacts) *Diagnosis {
	c := f.condition(v1alpha1.ConditionPortReady)
	switch {
	case c != nil && c.Status == metav1.ConditionFalse && differs[c.Reason]:
		return trouble(PortDiffers, fmt.Sprintf("The port at the provider differs from the PodNIC (%s): %s", c.Reason, c.Message), Remedy(c.Reason), seeNICs)
	case c != nil && c.Status == metav1.ConditionFalse:
		return trouble(NoPort, fmt.Sprintf("It has no port as requested (%s): %s", c.Reason, c.Message), Remedy(c.Reason), seeNICs)
	case f.NIC.Status.PortID != "":
		return nil
	case !f.late(f.since()):
		return fine(Starting, "Its port is being created.")
	}
	return trouble(NoPort, fmt.Sprintf("It has had no port for %s, and berth-operator has given no reason.", f.age(f.since())), operatorRemedy(f.Operators), seeNICs)
}

// operatorRemedy returns the remedy for a step that the operator has not taken.
func operatorRemedy(operators Fact[Operators]) string {
	if o := operators.Value; o != nil && o.Ready == 0 {
		return fmt.Sprintf("None of %d berth-operator pods is ready: check them and their logs (app.kubernetes.io/name=berth-operator).", o.All)
	}
	return "Check whether berth-operator is the leader, and its log."
}

// unused diagnoses a NIC that no scheduled pod uses.
func unused(f NICFacts) *Diagnosis {
	if PodOf(f.NIC) == nil {
		return fine(Unused, fmt.Sprintf("Its port is %s; no pod uses it.", f.NIC.Status.PortID))
	}
	if p := f.Pod.Value; p != nil && p.Spec.NodeName == "" {
		return fine(Unscheduled, fmt.Sprintf("Its port is %s; pod %s has no node yet.", f.NIC.Status.PortID, p.Name))
	}
	return nil
}

// elsewhere diagnoses a NIC that is bound to a node other than its pod's.
func elsewhere(f NICFacts) *Diagnosis {
	p, st := f.Pod.Value, f.NIC.Status
	if p == nil || st.Plug == nil || st.NodeName == "" || st.NodeName == p.Spec.NodeName {
		return nil
	}
	text := fmt.Sprintf("Port %s is bound to host %s of node %s, but pod %s is on node %s.", st.PortID, st.Host, st.NodeName, p.Name, p.Spec.NodeName)
	if !f.late(f.since()) {
		return fine(Starting, text)
	}
	return trouble(BoundElsewhere, text, "berth-operator binds it again once the previous node has unplugged it: check whether berthd runs there. If that node is gone for good, delete its Node, or set the taint node.kubernetes.io/out-of-service.", seeNICs)
}

func boundOf(f NICFacts) *Diagnosis {
	c := f.condition(v1alpha1.ConditionBound)
	if c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	switch c.Reason {
	case "NoPod":
		return fine(Unused, "No pod uses it.")
	case "Unscheduled":
		return fine(Unscheduled, c.Message)
	}
	return trouble(NotBound, fmt.Sprintf("Port %s is not bound to the pod's node (%s): %s", f.NIC.Status.PortID, c.Reason, c.Message), Remedy(c.Reason), seeNICs)
}

// notBound diagnoses a port that is not bound, when its conditions give no reason.
func notBound(f NICFacts) *Diagnosis {
	st := f.NIC.Status
	if st.Phase == v1alpha1.PhaseBound || st.Phase == v1alpha1.PhaseActive {
		return nil
	}
	if !f.late(f.since()) {
		return fine(Starting, fmt.Sprintf("Port %s is being bound.", st.PortID))
	}
	return trouble(NotBound, fmt.Sprintf("Port %s has not been bound to the pod's node for %s, and berth-operator has given no reason.", st.PortID, f.age(f.since())), operatorRemedy(f.Operators), seeNICs)
}

// notPlugged diagnoses a port that its node has not plugged, or not in the desired state.
func notPlugged(f NICFacts) *Diagnosis {
	st := f.NIC.Status
	n := st.Node
	if n != nil && n.PortID == st.PortID && n.State == v1alpha1.NodeFailed {
		return trouble(PlugFailed, fmt.Sprintf("Node %s cannot plug port %s: %s", st.NodeName, st.PortID, n.Message), plugRemedy(n.Reason), seeNoNIC)
	}
	if n != nil && n.PortID == st.PortID && n.State == v1alpha1.NodePlugged {
		if c := f.condition(v1alpha1.ConditionPlugged); c != nil && c.Status == metav1.ConditionFalse {
			return trouble(PlugFailed, fmt.Sprintf("Port %s is plugged on node %s, but not as desired (%s): %s", st.PortID, st.NodeName, c.Reason, c.Message), plugRemedy(c.Reason), seeNICs)
		}
		return nil
	}
	text := fmt.Sprintf("Port %s is bound to node %s, which has not reported it plugged", st.PortID, st.NodeName)
	if d := withoutDaemon(NotPlugged, text, f.Daemon, st.NodeName); d != nil {
		return d
	}
	if !f.late(f.since()) {
		return fine(Starting, text+" yet.")
	}
	return trouble(NotPlugged, fmt.Sprintf("%s for %s.", text, f.age(f.since())),
		"Check the pod's events (kubectl describe pod): images, volumes and secrets come before the network. Then check berthd's log on the node.", seeNoNIC)
}

// withoutDaemon diagnoses a step that a node has not taken because no berthd is ready there. It returns nil if one is.
func withoutDaemon(v Verdict, text string, d Fact[Daemon], node string) *Diagnosis {
	switch {
	case d.Absent():
		return trouble(v, text+": no berthd pod runs there.", startDaemon, seeDaemon)
	case d.Value != nil && !d.Value.Ready:
		return trouble(v, fmt.Sprintf("%s: berthd there is not ready: %s", text, cmp.Or(d.Value.Why, "no reason given")), fmt.Sprintf("Check its log (kubectl logs %s) and `kubectl berth node %s`.", d.Value.Pod, node), seeNode)
	}
	return nil
}

// plugRemedy returns the remedy for the reason why a node cannot plug a port.
func plugRemedy(reason string) string {
	const again = "Fix what the message names; berthd retries."
	if reason == "Invalid" { // of the port; the remedy in remedies is for an invalid request of a pod
		return again
	}
	return cmp.Or(remedies[reason], again)
}

func notActive(f NICFacts) *Diagnosis {
	st := f.NIC.Status
	if st.Phase == v1alpha1.PhaseActive {
		return nil
	}
	since := f.since()
	if st.Node.Since.After(since) {
		since = st.Node.Since.Time
	}
	text := fmt.Sprintf("Port %s is plugged on node %s, and the provider does not report it active", st.PortID, st.NodeName)
	if !f.late(since) {
		return fine(Starting, text+" yet.")
	}
	return trouble(NotActive, fmt.Sprintf("%s for %s.", text, f.age(since)),
		"Check OVN's controller, or the provider's agent, on the node: it installs the flows of the port and reports them.", seeNoNIC)
}

// Remedy returns the remedy for the reason of a condition of a VPC or PodNIC.
func Remedy(reason string) string {
	return cmp.Or(remedies[reason], "Fix what the message names; Berth retries.")
}

// remedies are the remedies by reason, as in docs/troubleshoot/ports.md, "Conditions of VPCs and NICs".
var remedies = map[string]string{
	"ProviderFailed":         "Nothing: Berth retries. If it persists, fix what the provider reports.",
	"Throttled":              "Nothing: Berth retries. If it persists, raise the provider's rate limit.",
	"Conflict":               "If other software uses the port, release it there; otherwise nothing: Berth retries.",
	"NoAnswer":               "Check the provider's endpoint, and the path to it from berth-operator's node.",
	"CertificateRefused":     "Set tls.caBundle of the VPC to the authority that signed the endpoint's certificate, and tls.serverName to a name in the certificate.",
	"InvalidEndpoint":        "Correct the VPC's endpoint, region or tls as the message says.",
	"ProviderNotSupported":   "Create the VPC again with a provider that this release supports.",
	"SecretNotFound":         "Create the Secret in the namespace of berth-operator.",
	"SecretIncomplete":       "Give the Secret the key that the message names.",
	"SecretUnreadable":       "Let berth-operator read Secrets of its own namespace, as the chart's Role does.",
	"CredentialsRefused":     "Correct the Secret that the VPC names; berth-operator reads it again immediately.",
	"ProjectChanged":         "Restore the credentials of the old project. Before a change of the project, delete the VPC's PodNICs with them.",
	"Forbidden":              "Allow the operator's user what the message names, or set the VPC's portMAC to Provider if it is about MAC addresses.",
	"NetworkNotFound":        "Create the network, or create the VPC again with another.",
	"NetworkAmbiguous":       "Create the VPC again with the network's ID: several networks have the name.",
	"NetworkChanged":         "Restore the names of the networks, or delete the VPC's PodNICs first.",
	"NoSubnet":               "Create a subnet in the network.",
	"SubnetNotFound":         "Correct the VPC's defaultSubnets.",
	"Deleting":               "Delete the pods and PodNICs that still have NICs in the VPC.",
	"NotFound":               "Correct the subnet or security group that the message names, or tag the port for the namespace.",
	"Invalid":                "Correct the pod's request as the message says.",
	"VPCNotReady":            "Check the VPC's own conditions (kubectl berth vpcs), or create the VPC that the message names.",
	"Refused":                "Correct the request of the pod or PodNIC as the message says.",
	"NoPod":                  "Nothing: no pod uses it.",
	"Unscheduled":            "Nothing: the scheduler has no node for its pod yet.",
	"NoHost":                 "Give the Node the label that the message names, or wait for the Node.",
	"NamespaceLimit":         "Raise maxNICs in namespaceLimits of the VPC, or maxNICsPerNamespace; nothing, if other NICs of the namespace will be removed.",
	"NotAllowed":             "Let namespaceLimits or allowedNamespaces of the VPC allow what the message names, or delete the pod.",
	"NodeLimit":              "Raise maxNICsPerNode of the VPC, or move the pod to another node; nothing, if pods on the node will end.",
	"BindingFailed":          "Check whether the provider's agent runs on the node, and has the Node's name or the value of hostLabel; Berth retries.",
	"StillPlugged":           "Check whether berthd runs on the node that had it. If that node is gone for good, delete its Node, or set the taint node.kubernetes.io/out-of-service.",
	"AddressChanged":         "Restore the addresses of the port that the message names, or recreate the pod.",
	"InterfaceExists":        "Remove the interface of that name from the pod, or give the NIC another name.",
	"DefaultRoute":           "Omit defaultRoute, or recreate the pod: another interface has its default route.",
	"NoTun":                  "Load the kernel module tun on the node, and let berthd open /dev/net/tun.",
	"NoVLAN":                 "Load the kernel module 8021q on the node.",
	"NotActive":              "Make sure that OVN's controller, or the provider's agent, runs on the node, or that its trunk is attached.",
	"OpenVSwitchUnreachable": "Make sure that Open vSwitch runs on the node and listens at the address of --ovsdb.",
	"NoBridge":               "Make sure that Open vSwitch on the node has the bridge (--ovs-bridges).",
	"LinkNameTaken":          "Remove the link that has the name or the VLAN on the node.",
	"PortInUse":              "Nothing, if another sandbox of the pod still has the port; otherwise find out which attachment has it.",
	"PlugFailed":             "Fix what the message names; Berth retries.",
	"UnplugFailed":           "Fix what the message names; Berth retries.",
	"Unplugged":              "Nothing: the node has nothing left of it.",
	"PortDeleted":            "Nothing: Berth creates another port if it created this one.",
	"MACTaken":               "Nothing: Berth creates it again.",
	"SubnetFull":             "Use another subnet, or add one to the network; Berth retries once an address is free.",
	"AddressTaken":           "Request another address, or remove the port that has it.",
	"OverQuota":              "Raise the project's quota of ports.",
	"TooLarge":               "Contact support with the message.",
	"UnexpectedAnswer":       "Contact support with the message.",
}
