package diagnose

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/introspect"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// waits returns a pod that waits for its address on a node in a mode, without any other problem.
func waits(mode Mode) Facts {
	f := Facts{
		Now: now,
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"},
			Spec:       corev1.PodSpec{NodeName: "node-a"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		},
		Node:      Of(corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/i-1"}}),
		Namespace: Of(corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}),
		Daemon:    Of(Daemon{Pod: "-n kube-system berthd-x", Mode: mode, Ready: true}),
		Operators: Of(Operators{Ready: 1, All: 2}),
		Answers: Answers{View: Of(introspect.Pod{Namespace: "shop", Name: "web-0", Time: now, Waiting: []introspect.Waiting{{ContainerID: "c", Since: now.Add(-7 * time.Second)}}}),
			Document: Of(introspect.Document{Node: "node-a", Totals: introspect.Totals{Waiting: 1}})},
	}
	switch mode {
	case OperatorMode:
		n := v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		n.Spec.InstanceID = "i-1"
		f.NodeNetwork = Of(n)
	case PoolMode:
		f.Pools, f.Requests = Of([]v1alpha1.AddressPool{pool("default", nil)}), Of([]v1alpha1.BlockRequest{})
	case NodeMode, PortMode, EgressMode:
	}
	return f
}

// policies has a pod's node enforce network policies, with one attachment of the pod.
func policies(f *Facts, a introspect.PolicyAttachment) {
	a.Namespace, a.Pod = "shop", "web-0"
	f.Policies = Of(introspect.NetworkPolicies{Enabled: true, Attachments: []introspect.PolicyAttachment{a}})
}

// runs returns a pod with an address that its node has recorded.
func runs() Facts {
	f := waits(NodeMode)
	f.Pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.5"}}}
	f.View.Value.Waiting = nil
	f.View.Value.Attachments = []introspect.Attachment{{Allocated: introspect.Allocated{Address: netip.MustParseAddr("10.0.0.5")}, State: "ready", Checked: true}}
	return f
}

// inVPC returns a waiting pod whose only NIC works.
func inVPC() Facts {
	f, of := waits(PortMode), plugged()
	f.Pod.UID, f.Pod.CreationTimestamp, f.Pod.Annotations = "u-1", of.NIC.CreationTimestamp, map[string]string{v1alpha1.AnnotationVPC: "blue"}
	f.NICs, f.VPCs = Of([]v1alpha1.PodNIC{*of.NIC}), map[string]Fact[v1alpha1.VPC]{"blue": of.VPC}
	return f
}

// useEgress makes a pod a served client of an Egress, and edits the client.
func useEgress(f Facts, edit func(*ClientFacts)) Facts {
	of := served()
	if edit != nil {
		edit(&of)
	}
	f.Pod.UID, f.Pod.CreationTimestamp, f.Pod.Annotations = "u-1", of.Client.CreationTimestamp, map[string]string{v1alpha1.AnnotationEgressPrefix + "egress": "internet"}
	f.EgressClient = Of(*of.Client)
	return f
}

// static makes the pod a static pod's mirror; its EgressClient has the static pod's UID.
func static(f *Facts) {
	f.Pod.Annotations[corev1.MirrorPodAnnotationKey], f.EgressClient.Value.Spec.PodUID = "u-static", "u-static"
}

// namesWrong makes the pod's annotation name an Egress that it may not use.
func namesWrong(f *ClientFacts) {
	isNot("NotAllowed", "Egress egress/bank does not allow namespace shop", time.Minute)(f)
	f.Client.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "bank", Reason: "NotAllowed", Message: "Egress egress/bank does not allow namespace shop", Named: true}}
}

func nic(edit func(*v1alpha1.PodNIC)) func(*Facts) {
	return func(f *Facts) { edit(&(*f.NICs.Value)[0]) }
}

func pool(name string, edit func(*v1alpha1.AddressPool)) v1alpha1.AddressPool {
	p := v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}}
	if edit != nil {
		edit(&p)
	}
	return p
}

func truth(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func request(pool string, age time.Duration, conditions ...metav1.Condition) v1alpha1.BlockRequest {
	r := v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: "req-1", CreationTimestamp: metav1.NewTime(now.Add(-age))}}
	r.Spec.NodeName, r.Spec.PoolName, r.Status.Conditions = "node-a", pool, conditions
	return r
}

func sandboxFailed(ago time.Duration, message string) corev1.Event {
	return corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", LastTimestamp: metav1.NewTime(now.Add(-ago)), Message: message}
}

// addFailed is the kubelet's event for a failed ADD of Berth's plugin.
func addFailed(text string) corev1.Event {
	return sandboxFailed(time.Minute, kubelet+`plugin type="berth" failed (add): `+text)
}

func eventOfDaemon(reason, message string) corev1.Event {
	return corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, ReportingController: "berthd", EventTime: metav1.NewMicroTime(now.Add(-time.Second)), Message: message}
}

const kubelet = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "5f2c": `

func TestPod(t *testing.T) {
	network := func(c ...metav1.Condition) func(*Facts) {
		return func(f *Facts) { f.NodeNetwork.Value.Status.Conditions = c }
	}
	idle := func(f *Facts) { f.View.Value.Waiting = nil } // no pod requested an address
	requests := func(list ...v1alpha1.BlockRequest) func(*Facts) { return func(f *Facts) { f.Requests = Of(list) } }
	poolOf := func(c metav1.Condition) func(*Facts) {
		return func(f *Facts) {
			f.Pools = Of([]v1alpha1.AddressPool{pool("default", func(p *v1alpha1.AddressPool) { meta.SetStatusCondition(&p.Status.Conditions, c) })})
		}
	}
	said := func(events ...corev1.Event) func(*Facts) {
		return func(f *Facts) { idle(f); f.Events = events }
	}
	for _, tc := range []struct {
		name string
		of   Facts
		edit func(*Facts)
		want Verdict
		says string // expected in the summary or remedy
	}{
		// The pod itself.
		{"ended well", runs(), func(f *Facts) { f.Pod.Status.Phase = corev1.PodSucceeded }, Finished, "Succeeded"},
		{"failed", waits(NodeMode), func(f *Facts) { f.Pod.Status.Phase = corev1.PodFailed }, Finished, "Failed"},
		{"host network", runs(), func(f *Facts) { f.Pod.Spec.HostNetwork = true }, HostNetwork, "its node's address"},
		{"no node, and why", waits(NodeMode), func(f *Facts) {
			f.Pod.Spec.NodeName = ""
			f.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available: too many pods"}}
		}, NotScheduled, "too many pods"},
		{"no node, no reason from the scheduler", waits(NodeMode), func(f *Facts) { f.Pod.Spec.NodeName = "" }, NotScheduled, "the scheduler has given no reason"},
		{"being deleted", waits(NodeMode), func(f *Facts) { f.Pod.DeletionTimestamp = &metav1.Time{Time: now} }, Ending, "being deleted"},

		// The pod has an address.
		{"works", runs(), nil, Works, "10.0.0.5"},
		{"works with both families", runs(), func(f *Facts) {
			f.Pod.Status.PodIPs = append(f.Pod.Status.PodIPs, corev1.PodIP{IP: "2001:db8::5"})
			f.View.Value.Attachments[0].IPv6 = netip.MustParseAddr("2001:db8::5")
		}, Works, "10.0.0.5 and 2001:db8::5"},
		{"status of an old API server", runs(), func(f *Facts) { f.Pod.Status.PodIPs, f.Pod.Status.PodIP = nil, "10.0.0.5" }, Works, "10.0.0.5"},
		{"broken path", runs(), func(f *Facts) {
			f.View.Value.Attachments[0].Fault = "pod link bthx: no route to 10.0.0.5 in table 19000"
		}, PathBroken, "no route to 10.0.0.5"},
		{"not compared", runs(), func(f *Facts) {
			f.View.Value.Attachments[0].Checked, f.View.Value.Attachments[0].Fault = false, "another call is at work"
		}, Unchecked, "another call"},
		{"one of two not compared", runs(), func(f *Facts) {
			f.View.Value.Attachments = append(f.View.Value.Attachments, introspect.Attachment{Allocated: introspect.Allocated{Address: netip.MustParseAddr("10.0.0.6")}, State: "ready", Fault: "another call is at work"})
		}, Unchecked, "another call is at work"},
		{"policies in force", runs(), func(f *Facts) { policies(f, introspect.PolicyAttachment{Known: true, InForce: true}) }, Works, ""},
		{"policies unknown", runs(), func(f *Facts) { policies(f, introspect.PolicyAttachment{InForce: true}) }, NoPolicies, "berth-operator has not sent the pod's network policies to node node-a"},
		{"policies not in force", runs(), func(f *Facts) {
			policies(f, introspect.PolicyAttachment{Known: true})
			f.Policies.Value.Failure = "ENOMEM"
		}, NoPolicies, "not in force on node node-a: ENOMEM"},
		{"policies of another pod", runs(), func(f *Facts) {
			policies(f, introspect.PolicyAttachment{Known: true, InForce: true})
			f.Policies.Value.Attachments[0].Pod = "other"
		}, NoPolicies, "enforces no network policies for the pod"},
		{"waits for policies", waits(NodeMode), func(f *Facts) {
			f.View.Value.Waiting[0].Reason, f.View.Value.Waiting[0].Message = "policies-unknown", "berth-operator has not sent this node"
		}, NoPolicies, "berth-operator has not sent this node"},
		{"policies did not arrive in time", waits(NodeMode), func(f *Facts) {
			f.View.Value.Waiting = nil
			f.Events = []corev1.Event{sandboxFailed(time.Second, `plugin type="berth" failed (add): the pod's network policies are not in force: ENOMEM`)}
		}, NoPolicies, "before its network policies are in force: ENOMEM"},
		{"daemon cannot be queried", runs(), func(f *Facts) { f.View = Unread[introspect.Pod]("no answer within 10s") }, Unchecked, "no answer within 10s"},
		{"daemon pod deleted", runs(), func(f *Facts) { f.Daemon, f.View = Fact[Daemon]{}, Fact[introspect.Pod]{} }, Unchecked, "no berthd pod"},
		{"address of another plugin", runs(), func(f *Facts) { f.View.Value.Attachments = nil }, NotOfBerth, "another plugin"},
		{"attachment being released", runs(), func(f *Facts) { f.View.Value.Attachments[0].State = "releasing" }, NotOfBerth, "did not assign"},
		{"status and attachment disagree", runs(), func(f *Facts) { f.Pod.Status.PodIPs[0].IP = "10.0.0.6" }, AddressesDisagree, "10.0.0.5"},
		{"malformed address in the status", waits(NodeMode), func(f *Facts) { f.Pod.Status.PodIPs = []corev1.PodIP{{IP: "\x1b[2J"}} }, Waiting, "7s"},
		{"address not in the status yet", runs(), func(f *Facts) { f.Pod.Status.PodIPs = nil }, Starting, "10.0.0.5"},
		{"broken path, address not in the status yet", runs(), func(f *Facts) { f.Pod.Status.PodIPs, f.View.Value.Attachments[0].Fault = nil, "bthx is down" }, PathBroken, "bthx is down"},

		// Its node.
		{"Node deleted", waits(NodeMode), func(f *Facts) { f.Node = Fact[corev1.Node]{} }, NodeGone, "which does not exist"},
		{"Node not readable", waits(NodeMode), func(f *Facts) { f.Node = Unread[corev1.Node]("forbidden") }, Waiting, "7s"},
		{"no berthd", waits(NodeMode), func(f *Facts) { f.Daemon, f.View = Fact[Daemon]{}, Fact[introspect.Pod]{} }, NoDaemon, "No berthd pod runs on node node-a"},
		{"pods not listable", waits(NodeMode), func(f *Facts) {
			f.Daemon, f.View = Unread[Daemon]("forbidden"), Unread[introspect.Pod]("forbidden")
		}, NotAsked, "could not be queried for the reason: forbidden"},
		{"berthd crashes", waits(NodeMode), func(f *Facts) {
			f.Daemon.Value.Ready, f.Daemon.Value.Why = false, "its container waits (CrashLoopBackOff)"
		}, DaemonNotReady, "CrashLoopBackOff"},
		{"berthd starts", waits(NodeMode), func(f *Facts) {
			f.Daemon.Value.Ready, f.View = false, Unread[introspect.Pod]("berthd is starting: waiting for the metadata service")
		}, DaemonNotReady, "metadata service"},
		{"kubelet stopped", waits(NodeMode), func(f *Facts) {
			idle(f)
			f.Node.Value.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."}}
		}, NodeNotReady, "Kubelet stopped"},
		{"no address requested yet", waits(NodeMode), idle, NotAsked, "has not requested an address"},
		{"volumes come first", waits(NodeMode), said(corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "secret not found", LastTimestamp: metav1.NewTime(now)}), NotAsked, "FailedMount: secret not found"},

		// The plugin reported an error.
		{"ADD failed", waits(NodeMode), said(addFailed(`the attachment's record could not be written; no space left on device`)), Refused, "The pod's ADD failed: the attachment's record could not be written; no space left on device"},
		{"ADD failed, with the network's name", waits(NodeMode), said(sandboxFailed(time.Minute, kubelet+`plugin type="berth" name="berth" failed (add): the kernel rejected a step of the pod's network setup`)), Refused, "ADD failed: the kernel rejected"},
		{"another plugin of the chain", waits(NodeMode), said(sandboxFailed(time.Minute, kubelet+`plugin type="portmap" failed (add): no iptables`)), Refused, "container runtime could not create"},
		{"ADD failed long ago", waits(NodeMode), said(sandboxFailed(time.Hour, kubelet+`plugin type="berth" failed (add): x`)), NotAsked, ""},
		{"ADD failed before, waits now", waits(NodeMode), func(f *Facts) {
			f.Events = []corev1.Event{addFailed(`berthd is being restarted; try again`)}
		}, Waiting, "7s"},
		{"no address before the deadline", waits(NodeMode), said(addFailed(`no address for the pod: no subnet that this node may use has a free address: free some, or configure a further subnet`)), Waiting, "in time: no subnet that this node may use"},
		{"berthd reports why it waits", waits(NodeMode), func(f *Facts) {
			f.Document.Value.LastError = "of another pod"
			f.Events = []corev1.Event{eventOfDaemon("WaitingForAddress", "no address is free: every ENI is full [eni-limit] Run fewer pods")}
		}, Waiting, "for 7s: no address is free: every ENI is full [eni-limit]"},
		{"the node reports why this ADD waits", waits(NodeMode), func(f *Facts) {
			f.View.Value.Waiting = append(f.View.Value.Waiting, introspect.Waiting{ContainerID: "d", Since: now, Reason: "subnet-full", Message: "no subnet has a free address"})
			f.Document.Value.LastError = "of another pod"
			f.Events = []corev1.Event{eventOfDaemon("WaitingForAddress", "no address is free: every ENI is full [eni-limit] Run fewer pods")}
		}, Waiting, "for 7s: no subnet has a free address [subnet-full]"},
		{"berthd reported that no address was available", waits(NodeMode), said(eventOfDaemon("NoAddress", "no address for the pod: every ENI is full [eni-limit]")), Waiting, "in time: no address for the pod: every ENI"},
		{"berthd reported that the ADD failed", waits(NodeMode), said(eventOfDaemon("NetworkNotSetUp", "the kernel refused a step [kernel]")), Refused, "the kernel refused a step [kernel]"},
		{"worked since, before a new sandbox", waits(NodeMode), said(addFailed(`x`), eventOfDaemon("AddressAssigned", "has 10.0.0.5")), NotAsked, ""},
		{"waits again", waits(NodeMode), func(f *Facts) {
			f.Document.Value.Conditions = []introspect.Condition{{Type: "AddressesAvailable", Status: "False", Message: "14 ADDs wait for an address"}}
			f.Events = []corev1.Event{addFailed(`no address for the pod: every ENI is full`)}
		}, Waiting, "for 7s: every ENI is full"},
		{"waits, the node's condition says why", waits(NodeMode), func(f *Facts) {
			f.Document.Value.Conditions = []introspect.Condition{{Type: "AddressesAvailable", Status: "False", Message: "every ENI that the instance may have is full"}}
		}, Waiting, "every ENI"},
		{"waits, EC2 calls fail", waits(NodeMode), func(f *Facts) { f.Document.Value.LastError = "RequestLimitExceeded" }, Waiting, "RequestLimitExceeded"},
		{"waiting since a time in the future", waits(NodeMode), func(f *Facts) { f.View.Value.Waiting[0].Since = now.Add(time.Hour) }, Waiting, "for 0s"},

		// Operator mode.
		{"waits for the operator", waits(OperatorMode), nil, Waiting, "7s"},
		{"no NodeNetwork", waits(OperatorMode), func(f *Facts) { f.NodeNetwork = Fact[v1alpha1.NodeNetwork]{} }, NoNodeNetwork, "--auto-create-node-network"},
		{"NodeNetwork not readable", waits(OperatorMode), func(f *Facts) { f.NodeNetwork = Unread[v1alpha1.NodeNetwork]("forbidden") }, Waiting, ""},
		{"NodeNetwork of another instance", waits(OperatorMode), func(f *Facts) { f.NodeNetwork.Value.Spec.InstanceID = "i-2" }, OtherInstance, "i-2"},
		{"Node without a cloud provider", waits(OperatorMode), func(f *Facts) { f.Node.Value.Spec.ProviderID = "kind://x" }, Waiting, ""},
		{"degraded", waits(OperatorMode), network(truth("Degraded", "SubnetFull", "subnet-1 is full")), Degraded, "subnet-1 is full"},
		{"at capacity", waits(OperatorMode), network(truth("AtCapacity", "EniLimit", "3 ENIs are full")), AtCapacity, "maxPods"},
		{"at capacity with a free address", waits(OperatorMode), func(f *Facts) {
			network(truth("AtCapacity", "EniLimit", "x"))(f)
			f.Document.Value.Totals.Available = 1
		}, Waiting, ""},
		{"no operator", waits(OperatorMode), func(f *Facts) { f.Operators = Of(Operators{Ready: 0, All: 2}) }, NoOperator, "none of 2"},
		{"operators not readable", waits(OperatorMode), func(f *Facts) { f.Operators = Unread[Operators]("forbidden") }, Waiting, ""},

		// Address pools.
		{"waits for a block", waits(PoolMode), nil, Waiting, "7s"},
		{"no default pool", waits(PoolMode), func(f *Facts) { f.Pools = Of([]v1alpha1.AddressPool{}) }, NoPool, "no annotation of the pod or its namespace"},
		{"the namespace's pool does not exist", waits(PoolMode), func(f *Facts) { f.Namespace.Value.Annotations = map[string]string{v1alpha1.AnnotationPool: "web"} }, NoPool, "the namespace's annotation"},
		{"pool not allowed for the namespace", waits(PoolMode), func(f *Facts) {
			f.Pod.Annotations = map[string]string{v1alpha1.AnnotationPool: "web"}
			f.Pools = Of([]v1alpha1.AddressPool{pool("default", nil), pool("web", nil)})
		}, PoolNotAllowed, "spec.podNamespaces does not list namespace shop"},
		{"pool allowed for the namespace", waits(PoolMode), func(f *Facts) {
			f.Pod.Annotations = map[string]string{v1alpha1.AnnotationPool: "web"}
			f.Pools = Of([]v1alpha1.AddressPool{pool("web", func(p *v1alpha1.AddressPool) { p.Spec.PodNamespaces = []string{"shop"} })})
		}, Waiting, ""},
		{"pod names the default pool", waits(PoolMode), func(f *Facts) { f.Pod.Annotations = map[string]string{v1alpha1.AnnotationPool: "default"} }, Waiting, ""},
		{"pool being deleted", waits(PoolMode), func(f *Facts) {
			f.Pools = Of([]v1alpha1.AddressPool{pool("default", func(p *v1alpha1.AddressPool) { p.DeletionTimestamp = &metav1.Time{Time: now} })})
		}, PoolNotReady, "being deleted"},
		{"pool overlaps", waits(PoolMode), poolOf(metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPoolOverlaps, Message: "10.2.0.0/16 overlaps web"}), PoolNotReady, "overlaps web"},
		{"pool exhausted", waits(PoolMode), poolOf(truth("Exhausted", v1alpha1.ReasonPoolExhausted, "all 8 blocks are taken")), PoolExhausted, "all 8 blocks"},
		{"exhausted, according to the request", waits(PoolMode), requests(request("default", time.Minute, truth("Failed", v1alpha1.ReasonPoolExhausted, "no block is free"))), PoolExhausted, "kubectl berth pools"},
		{"exhausted, but the node has a free address", waits(PoolMode), func(f *Facts) {
			f.Requests = Of([]v1alpha1.BlockRequest{request("default", time.Minute, truth("Failed", v1alpha1.ReasonPoolExhausted, "x"))})
			f.Document.Value.Pools = []introspect.Pool{{Name: "default", Free: 1}}
		}, Waiting, ""},
		{"node quota reached", waits(PoolMode), requests(request("default", time.Minute, truth("Failed", v1alpha1.ReasonNodeQuota, "the node has 3 blocks"))), RequestRefused, "the node has 3 blocks"},
		{"request for another pool", waits(PoolMode), requests(request("web", time.Minute, truth("Failed", v1alpha1.ReasonNodeQuota, "x"))), Waiting, ""},
		{"request unanswered", waits(PoolMode), requests(request("default", time.Minute)), RequestUnanswered, "req-1"},
		{"request just created", waits(PoolMode), requests(request("default", time.Second)), Waiting, ""},
		{"request without an operator", waits(PoolMode), func(f *Facts) {
			f.Requests = Of([]v1alpha1.BlockRequest{request("default", time.Minute)})
			f.Operators = Of(Operators{All: 1})
		}, NoOperator, "none of 1"},
		{"pools not readable", waits(PoolMode), func(f *Facts) { f.Pools = Unread[[]v1alpha1.AddressPool]("forbidden") }, Waiting, ""},

		// The pod has NICs that are ports of VPCs.
		{"NICs in progress", inVPC(), nil, Waiting, "7s"},
		{"no PodNIC", inVPC(), func(f *Facts) { f.NICs = Of([]v1alpha1.PodNIC{}) }, NoPodNIC, "has created no PodNIC"},
		{"no PodNIC, no operator", inVPC(), func(f *Facts) { f.NICs, f.Operators = Of([]v1alpha1.PodNIC{}), Of(Operators{All: 2}) }, NoPodNIC, "None of 2"},
		{"no PodNIC yet", inVPC(), func(f *Facts) { f.NICs, f.Pod.CreationTimestamp = Of([]v1alpha1.PodNIC{}), metav1.NewTime(now) }, Waiting, ""},
		{"no VPC", inVPC(), func(f *Facts) { f.NICs, f.VPCs = Of([]v1alpha1.PodNIC{}), nil }, VPCNotReady, "which does not exist"},
		{"NICs without a VPC", inVPC(), func(f *Facts) {
			f.NICs, f.Pod.Annotations = Of([]v1alpha1.PodNIC{}), map[string]string{v1alpha1.AnnotationNICs: "[]"}
		}, NoPodNIC, "names a VPC in the annotation"},
		{"VPC of the namespace", inVPC(), func(f *Facts) {
			f.NICs, f.Pod.Annotations = Of([]v1alpha1.PodNIC{}), nil
			f.Namespace.Value.Annotations = map[string]string{v1alpha1.AnnotationVPC: "blue"}
		}, NoPodNIC, "in VPC blue"},
		{"PodNICs not readable", inVPC(), func(f *Facts) { f.NICs = Unread[[]v1alpha1.PodNIC]("forbidden") }, Waiting, ""},
		{"NIC without a port", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Status = v1alpha1.PodNICStatus{} }), NoPort, "NIC without a name (PodNIC web-0-eth0-x7)"},
		{"port deleted", inVPC(), nic(func(o *v1alpha1.PodNIC) {
			o.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "PortDeleted", "port p-1 was deleted", time.Hour)}
		}), PortDiffers, "NIC eth0"},
		{"port not bound", inVPC(), nic(func(o *v1alpha1.PodNIC) {
			o.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionBound, metav1.ConditionFalse, "BindingFailed", "at host host-a", time.Hour)}
		}), NotBound, "BindingFailed"},
		{"NIC of another pod", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Spec.Pod, o.Status.Pod.UID = nil, "u-0" }), NotBound, "Another pod uses it"},
		{"NIC not assigned to the pod", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Spec.Pod, o.Status.Pod = nil, nil }), NotBound, "has not assigned it"},
		{"NIC bound on another node", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Status.NodeName = "node-b" }), BoundElsewhere, "node-b"},
		{"NIC not plugged", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Status.Node = nil }), NotPlugged, "has not reported"},
		{"NIC failed to plug", inVPC(), nic(func(o *v1alpha1.PodNIC) {
			o.Status.Node.State, o.Status.Node.Message = v1alpha1.NodeFailed, "no bridge"
		}), PlugFailed, "no bridge"},
		{"port not active", inVPC(), nic(func(o *v1alpha1.PodNIC) { o.Status.Phase = v1alpha1.PhaseBound }), NotActive, "active"},
		{"address of the pod's NIC", inVPC(), func(f *Facts) {
			f.Pod.Status = runs().Pod.Status
			f.View.Value.Waiting = nil
			f.View.Value.Attachments = []introspect.Attachment{{State: "ready", Checked: true, Allocated: introspect.Allocated{}, NICs: []introspect.NIC{{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}}}
		}, Works, "10.0.0.5"},
		{"address, but a NIC is missing", inVPC(), func(f *Facts) {
			nic(func(o *v1alpha1.PodNIC) { o.Status = v1alpha1.PodNICStatus{} })(f)
			with := runs()
			f.Pod.Status, f.View = with.Pod.Status, with.View
		}, NoPort, ""},

		// The pod uses Egresses.
		{"uses an Egress", useEgress(runs(), nil), nil, Works, ""},
		{"tunnels not set up", useEgress(runs(), isNot("SetUpFailed", "berthd of node node-a: no FoU", time.Minute)), nil, NotSetUp, "no FoU"},
		{"address conflict", useEgress(runs(), isNot("AddressConflict", "10.0.0.5 is shop/web-1's", time.Minute)), nil, NotServed, "web-1"},
		{"no gateway", useEgress(runs(), isNot("NoGateway", "Egress egress/internet has no gateway", time.Minute)), nil, NoGateway, "Available"},
		{"Egress not allowed", useEgress(runs(), namesWrong), nil, EgressRefused, "does not allow"},
		{"Egress not allowed, pod starting", useEgress(waits(NodeMode), namesWrong), nil, EgressRefused, "does not allow"},
		{"selected by an Egress that is not allowed", useEgress(waits(NodeMode), namesWrong), func(f *Facts) { f.EgressClient.Value.Spec.Refused[0].Named = false }, Waiting, ""},
		{"tunnels wait for the pod's address", useEgress(waits(NodeMode), isNot("WaitingForNode", "not yet", time.Hour)), nil, Waiting, ""},
		{"no EgressClient", useEgress(waits(NodeMode), nil), func(f *Facts) { f.EgressClient = Fact[v1alpha1.EgressClient]{} }, NoEgressClient, "feature egress"},
		{"no EgressClient, running", useEgress(runs(), nil), func(f *Facts) { f.EgressClient = Fact[v1alpha1.EgressClient]{} }, NoEgressClient, ""},
		{"EgressClient without a status", useEgress(runs(), func(f *ClientFacts) { f.Client.Status.Conditions = nil }), nil, NotLookedAt, "whether berth-operator is the leader"},
		{"EgressClient of an earlier pod", useEgress(runs(), nil), func(f *Facts) { f.EgressClient.Value.Spec.PodUID = "u-0" }, NoEgressClient, ""},
		{"no EgressClient yet", useEgress(runs(), nil), func(f *Facts) {
			f.EgressClient, f.Pod.CreationTimestamp = Fact[v1alpha1.EgressClient]{}, metav1.NewTime(now)
		}, Works, ""},
		{"EgressClients not readable", useEgress(runs(), nil), func(f *Facts) { f.EgressClient = Unread[v1alpha1.EgressClient]("forbidden") }, Works, ""},
		{"address of another network", runs(), func(f *Facts) { f.Daemon.Value.Mode, f.View.Value.Attachments = EgressMode, nil }, Works, "has added nothing"},
		{"address of another network, tunnel missing", runs(), func(f *Facts) {
			f.Daemon.Value.Mode, f.View.Value.Attachments[0].Fault = EgressMode, "tunnel fou4 is missing"
		}, PathBroken, "fou4"},
		{"address of another network, tunnels intact", runs(), func(f *Facts) { f.Daemon.Value.Mode = EgressMode }, Works, "is intact"},
		{"address of another network, tunnels not checked", runs(), func(f *Facts) {
			f.Daemon.Value.Mode = EgressMode
			f.View.Value.Attachments[0].Checked, f.View.Value.Attachments[0].Fault = false, "the kernel was not read"
		}, Unchecked, "the kernel was not read"},
		{"address of another network, tunnels pending", runs(), func(f *Facts) {
			f.Daemon.Value.Mode = EgressMode
			f.View.Value.Attachments[0].Checked, f.View.Value.Attachments[0].State = false, "pending"
		}, Unchecked, "it is pending on its node"},
		{"EgressClient of a static pod", useEgress(runs(), nil), static, Works, ""},
		{"EgressClient of an earlier static pod", useEgress(runs(), nil), func(f *Facts) {
			static(f)
			f.EgressClient.Value.Spec.PodUID = "u-1"
		}, NoEgressClient, ""},
		{"host-network pod names an Egress", useEgress(runs(), namesWrong), func(f *Facts) { f.Pod.Spec.HostNetwork = true }, EgressRefused, "does not allow"},
		{"unscheduled host-network pod names an Egress", useEgress(waits(NodeMode), nil), func(f *Facts) {
			f.Pod.Spec.HostNetwork, f.Pod.Spec.NodeName, f.EgressClient = true, "", Fact[v1alpha1.EgressClient]{}
		}, HostNetwork, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.edit != nil {
				tc.edit(&tc.of)
			}
			d := Pod(tc.of)
			wantDiagnosis(t, d, tc.want, tc.says)
			verdicts[d.Verdict] = true
		})
	}
	for _, v := range declared(t) {
		if !verdicts[v] {
			t.Errorf("no test case covers verdict %s", v)
		}
	}
}

// wantDiagnosis checks the verdict, the text of its summary or remedy, and that every problem has a remedy.
func wantDiagnosis(t *testing.T, d Diagnosis, want Verdict, text string) {
	t.Helper()
	if d.Verdict != want || !strings.Contains(d.Summary+d.Remedy, text) {
		t.Errorf("diagnosis = %+v\nwant %s with %q", d, want, text)
	}
	if !d.OK && (d.Remedy == "" || d.See == "" && d.Verdict != NotScheduled) {
		t.Errorf("%s has no remedy", d.Verdict)
	}
}

var verdicts = map[Verdict]bool{} // covered by a test case

// literals returns the values of the constants in verdict.go that match is.
func literals(t *testing.T, is func(name string, spec *ast.ValueSpec) bool) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "verdict.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.ValueSpec); ok && is(s.Names[0].Name, s) {
			out = append(out, strings.Trim(s.Values[0].(*ast.BasicLit).Value, "`\""))
		}
		return true
	})
	return out
}

func declared(t *testing.T) (out []Verdict) {
	for _, v := range literals(t, func(_ string, s *ast.ValueSpec) bool { return s.Type != nil }) {
		out = append(out, Verdict(v))
	}
	if len(out) < 20 {
		t.Fatalf("found %d verdicts in verdict.go, want at least 20", len(out))
	}
	return out
}

// Each heading that a diagnosis refers to exists.
func TestReferencedHeadingsExist(t *testing.T) {
	found := literals(t, func(name string, _ *ast.ValueSpec) bool { return strings.HasPrefix(name, "see") })
	if len(found) < 5 {
		t.Fatalf("found headings %q in verdict.go, want at least 5", found)
	}
	for _, see := range found {
		name, heading, _ := strings.Cut(see, ", ")
		page, err := os.ReadFile("../../../" + name)
		if err != nil || !strings.Contains(string(page), "# "+strings.Trim(heading, `"`)+"\n") {
			t.Errorf("%s has no heading %s: %v", name, heading, err)
		}
	}
}
