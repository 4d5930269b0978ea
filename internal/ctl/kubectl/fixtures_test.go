package kubectl

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs from %s (-want +got):\n%s", path, diff)
	}
}

// printed returns a table without colours.
func printed(t *testing.T, table func(p *view.Printer)) string {
	t.Helper()
	var out bytes.Buffer
	p := &view.Printer{W: &out}
	table(p)
	if p.Err != nil {
		t.Fatal(p.Err)
	}
	return out.String()
}

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(at.Add(-d)) }

func node(name string, ready corev1.ConditionStatus) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "eu-central-1a",
	}}}
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: ready}
	if ready != corev1.ConditionTrue {
		c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
	}
	n.Status.Conditions = []corev1.NodeCondition{c}
	return n
}

// berthd returns the pod of a node's daemon.
func berthd(node, ipam string, ready bool) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-" + node, Labels: map[string]string{connect.NameLabel: connect.DaemonName}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{
			Name: "berthd", Image: "registry.example:5000/berth/node:v0.9.1@sha256:0123", Env: []corev1.EnvVar{{Name: "BERTH_IPAM", Value: ipam}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "berthd", RestartCount: 2}}},
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	} else {
		p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}
	}
	return p
}

func operatorPod(name string, ready bool) corev1.Pod {
	p := berthd("node-a", "", ready)
	p.Name, p.Labels = name, map[string]string{connect.NameLabel: connect.OperatorName}
	return p
}

func is(kind string, status metav1.ConditionStatus, reason, message string, since time.Duration) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(since)}
}

// network returns a NodeNetwork with these numbers of addresses.
func network(name string, used, cooling, warm int, conditions ...metav1.Condition) v1alpha1.NodeNetwork {
	n := v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.InstanceID, n.Spec.InstanceType = "i-0123456789abcdef0", "m5.large"
	n.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{}
	n.Status.IPAM.Used = map[string]v1alpha1.UsedAddress{}
	addr := netip.MustParseAddr("10.0.0.10")
	for i := range used + cooling + warm {
		n.Spec.IPAM.Available[addr.String()] = v1alpha1.AvailableAddress{Resource: "eni-" + name}
		if i < used+cooling {
			n.Status.IPAM.Used[addr.String()] = v1alpha1.UsedAddress{Resource: "eni-" + name, Cooling: i >= used}
		}
		addr = addr.Next()
	}
	n.Status.IPAM.UsedCount = int32(used + cooling)
	n.Status.ENI = v1alpha1.ENIStatus{
		Count: 1, Available: int32(used + cooling + warm), Limits: &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10},
		ENIs: map[string]v1alpha1.ENI{"eni-" + name: {DeviceIndex: 1, SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"}},
	}
	n.Status.Conditions = append([]metav1.Condition{is("Ready", metav1.ConditionTrue, "AddressesAvailable", "", time.Hour)}, conditions...)
	return n
}

func pool(name string, total, allocated int64, conditions ...metav1.Condition) v1alpha1.AddressPool {
	p := v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Subnets = []v1alpha1.PoolSubnet{{IPv4: "10.2.0.0/16"}}
	p.Status.AcceptedSubnets = 1
	p.Status.Blocks = v1alpha1.PoolCounts{Total: total, Allocated: allocated, Free: total - allocated}
	p.Status.Addresses = v1alpha1.PoolCounts{Total: total * 32, Allocated: allocated * 32, Free: (total - allocated) * 32}
	p.Status.Conditions = append([]metav1.Condition{is("Ready", metav1.ConditionTrue, "Accepted", "", time.Hour)}, conditions...)
	return p
}

func block(pool, node string, i int) v1alpha1.AddressBlock {
	return v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", pool, i)}, PoolName: pool, NodeName: node, Index: int64(i)}
}

func request(pool, node string, age time.Duration, conditions ...metav1.Condition) v1alpha1.BlockRequest {
	r := v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: "req-" + node, CreationTimestamp: ago(age)}}
	r.Spec.PoolName, r.Spec.NodeName, r.Status.Conditions = pool, node, conditions
	return r
}

// document returns the introspection document of a node in node mode.
func document(node string) introspect.Document {
	return introspect.Document{
		InstanceID: "i-0123456789abcdef0", Node: node, IPAM: "eni", Version: "v0.9.1", Time: at,
		Totals:     introspect.Totals{Allocated: 3, Available: 2, Cooling: 1, Capacity: 9},
		Allocated:  []introspect.Allocated{{Address: netip.MustParseAddr("10.0.0.5"), Namespace: "shop", Pod: "web-0", ContainerID: "4f5e6d7c8b9a0f1e", Interface: "eth0", Origin: introspect.Origin{ENI: "eni-1"}, Since: at.Add(-90 * time.Second)}},
		ENIs:       []introspect.ENI{{ID: "eni-1", Primary: true, MAC: "0a:00:00:00:00:01", Subnet: "subnet-1", Ready: true, Capacity: 9, Used: 3}},
		Conditions: []introspect.Condition{{Type: "DataPathReady", Status: "True", Reason: "SetUp", Since: at.Add(-50 * time.Hour)}},
	}
}

// operatorCluster has one node for each problem of operator mode.
func operatorCluster() objects {
	gone := berthd("node-e", "eni-operator", true)
	windows := node("node-w", corev1.ConditionTrue)
	windows.Labels[corev1.LabelOSStable] = "windows"
	short := network("node-b", 9, 0, 0, is("InDeficit", metav1.ConditionTrue, "SubnetFull", "9 addresses, of which 9 are used, and 1 more are wanted: no subnet has a free address", time.Minute),
		is("Degraded", metav1.ConditionTrue, "SubnetFull", "subnet-1 has no free address", time.Minute))
	short.Status.IPAM.Waiting, short.Status.ENI.Needed = 2, 1
	bare := network("node-f", 0, 0, 0)
	bare.Status.Conditions = nil
	draining := network("node-a", 3, 1, 4)
	draining.Spec.IPAM.Releasing = []string{"10.0.0.17"}
	lease := "berth-operator-0_5f"
	o := objects{
		now: at,
		nodes: []corev1.Node{
			node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue), node("node-c", corev1.ConditionUnknown),
			node("node-d", corev1.ConditionTrue), node("node-f", corev1.ConditionTrue), windows,
		},
		daemons: daemonsOf([]corev1.Pod{
			berthd("node-a", "eni-operator", true), berthd("node-b", "eni-operator", true), berthd("node-c", "eni-operator", false), gone, berthd("node-f", "eni-operator", true),
		}),
		networks: []v1alpha1.NodeNetwork{draining, short, network("node-c", 1, 0, 1), bare},
		operator: operatorObjects{pods: []corev1.Pod{operatorPod("berth-operator-0", true), operatorPod("berth-operator-1", false)}},
	}
	o.operator.lease.Value = leaseOf(lease)
	return o
}

// poolCluster has one node for each problem of pool mode.
func poolCluster() objects {
	draining := block("default", "node-b", 7)
	draining.DeletionTimestamp = &metav1.Time{Time: at}
	return objects{
		now:     at,
		nodes:   []corev1.Node{node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue)},
		daemons: daemonsOf([]corev1.Pod{berthd("node-a", "pool", true), berthd("node-b", "pool", true)}),
		pools: []v1alpha1.AddressPool{
			pool("web", 2, 2, is("Exhausted", metav1.ConditionTrue, "PoolExhausted", "all 2 blocks are taken: append a subnet", time.Minute)),
			pool("default", 2048, 3), pool("new", 0, 0),
		},
		blocks: []v1alpha1.AddressBlock{block("default", "node-a", 0), block("default", "node-b", 1), draining, block("web", "node-b", 0), block("web", "node-b", 1)},
		requests: []v1alpha1.BlockRequest{
			request("web", "node-a", time.Minute, is("Failed", metav1.ConditionTrue, "PoolExhausted", "no block is free", time.Minute)), request("default", "node-b", 45*time.Second),
		},
		operator: operatorObjects{pods: []corev1.Pod{operatorPod("berth-operator-0", false)}},
	}
}

// vpc returns a VPC with the subnet web.
func vpc(name string, ready metav1.Condition) v1alpha1.VPC {
	v := v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec = v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "tenant-a", Endpoint: "http://192.0.2.1:9696", Project: "p-1",
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}
	v.Status = v1alpha1.VPCStatus{NetworkID: "n-1", ProjectID: "p-1", MTU: 1442, Subnets: []v1alpha1.VPCSubnet{
		{ID: "s-1", Name: "web", CIDR: "192.168.0.0/24", Gateway: "192.168.0.1"}, {ID: "s-2", Name: "small", CIDR: "192.168.1.0/29"},
	}, Conditions: []metav1.Condition{ready}}
	return v
}

// nic returns a working PodNIC in VPC blue for a pod on a node.
func nic(pod, node, ip string) v1alpha1.PodNIC {
	ref := &v1alpha1.PodReference{Name: pod, UID: "uid-" + pod}
	n := v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod + "-eth0", CreationTimestamp: ago(time.Hour), Labels: map[string]string{v1alpha1.LabelPodUID: ref.UID}}}
	n.Spec = v1alpha1.PodNICSpec{VPC: "blue", Pod: ref, Interface: "eth0", Addresses: []v1alpha1.NICAddress{{Subnet: "small"}}}
	n.Status = v1alpha1.PodNICStatus{
		Phase: v1alpha1.PhaseActive, Pod: ref, Interface: "eth0", NodeName: node, Host: "host-" + node, PortID: "port-" + pod, Made: true, MAC: "02:00:00:00:00:01", MTU: 1442,
		Addresses: []v1alpha1.PortAddress{{CIDR: ip + "/24", Subnet: "s-1"}}, Plug: &v1alpha1.PortPlug{Type: v1alpha1.PlugOVS, Bridge: "br-int"},
		Node: &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "port-" + pod},
		Conditions: []metav1.Condition{
			is("PortReady", metav1.ConditionTrue, "Ready", "port port-"+pod, time.Hour), is("Bound", metav1.ConditionTrue, "Bound", "at host host-"+node, time.Hour),
		},
	}
	return n
}

// portCluster is in port mode and has one NIC for each problem.
func portCluster() objects {
	full := nic("full", "node-a", "192.168.1.2")
	full.Status = v1alpha1.PodNICStatus{Phase: v1alpha1.PhasePending, Pod: full.Spec.Pod, NodeName: "node-a", Conditions: []metav1.Condition{
		is("PortReady", metav1.ConditionFalse, "SubnetFull", "Neutron POST ports: IpAddressGenerationFailure (409): no more addresses", time.Minute),
	}}
	unbound := nic("unbound", "node-b", "192.168.0.4")
	unbound.Status.Phase, unbound.Status.Plug, unbound.Status.Node = v1alpha1.PhaseCreated, nil, nil
	unbound.Status.Conditions[1] = is("Bound", metav1.ConditionFalse, "BindingFailed", "the provider could not bind the port at host host-node-b", time.Minute)
	also := unbound
	also.Name = "unbound-eth1"
	silent := nic("silent", "node-b", "192.168.0.5")
	silent.Status.Phase, silent.Status.Node = v1alpha1.PhaseBound, nil
	moved, lost := nic("moved", "node-b", "192.168.0.6"), nic("lost", "node-a", "192.168.0.7")
	kept := nic("kept", "", "192.168.0.8")
	kept.Spec.Pod, kept.Status.Pod, kept.Status.Phase, kept.Status.Plug, kept.Status.Node = nil, nil, v1alpha1.PhaseCreated, nil, nil
	kept.Status.Conditions[1] = is("Bound", metav1.ConditionFalse, "NoPod", "no pod has it", time.Minute)
	stray := nic("stray", "node-a", "192.168.0.9")
	stray.Spec.VPC = "gone"
	o := objects{
		now:      at,
		nodes:    []corev1.Node{node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue)},
		daemons:  daemonsOf([]corev1.Pod{berthd("node-a", "port", true), berthd("node-b", "port", true)}),
		operator: operatorObjects{pods: []corev1.Pod{operatorPod("berth-operator-0", true)}},
		vpcs: []v1alpha1.VPC{
			vpc("red", is("Ready", metav1.ConditionFalse, "NoAnswer", "Neutron GET networks: connection refused", time.Minute)), vpc("blue", is("Ready", metav1.ConditionTrue, "Ready", "", time.Hour)),
		},
		nics: []v1alpha1.PodNIC{nic("web-0", "node-a", "192.168.0.3"), full, unbound, also, silent, moved, lost, kept, stray},
		pods: map[string]*corev1.Pod{},
	}
	for _, n := range o.nics {
		if n.Spec.Pod != nil && n.Spec.Pod.Name != "lost" {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Spec.Pod.Name, UID: types.UID(n.Spec.Pod.UID)}, Spec: corev1.PodSpec{NodeName: n.Status.NodeName}}
			if p.Name == "moved" {
				p.Spec.NodeName = "node-a"
			}
			o.pods[n.Namespace+"/"+p.Name] = p
		}
	}
	return o
}

// egress returns an Egress whose gateway accepts connections.
func egress(name string, conditions ...metav1.Condition) v1alpha1.Egress {
	e := v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "egress", Name: name}}
	e.Spec = v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/0", "::/0"}, Replicas: new(int32(2)), TunnelTo: v1alpha1.TunnelToGateways}
	e.Status = v1alpha1.EgressStatus{
		Replicas: 2, ReadyGateways: 1, Clients: 1, ServiceIPs: []string{"10.96.0.7"},
		Gateways: []v1alpha1.EgressGateway{{Name: name + "-a", UID: "g-1", Addresses: []string{"10.3.0.1", "fd03::1"}}, {Name: name + "-b", UID: "g-2", Addresses: []string{"10.3.0.2"}, Ending: true}},
	}
	if conditions == nil {
		conditions = []metav1.Condition{
			is("Available", metav1.ConditionTrue, "GatewaysReady", "", time.Hour), is("ServiceReady", metav1.ConditionTrue, "Applied", "", time.Hour), is("ClientsReady", metav1.ConditionTrue, "Served", "", time.Hour),
		}
	}
	e.Status.Conditions = conditions
	return e
}

// egressClient returns a pod that uses Egresses and is served.
func egressClient(pod, node string, egresses ...string) v1alpha1.EgressClient {
	o := v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, CreationTimestamp: ago(time.Hour)}}
	o.Spec = v1alpha1.EgressClientSpec{PodUID: "uid-" + pod, NodeName: node}
	for _, name := range egresses {
		o.Spec.Egresses = append(o.Spec.Egresses, v1alpha1.EgressReference{Namespace: "egress", Name: name, UID: "uid-" + name})
	}
	o.Status = v1alpha1.EgressClientStatus{
		Conditions: []metav1.Condition{is("Ready", metav1.ConditionTrue, "SetUp", "", time.Hour)},
		Node:       &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, Addresses: []string{"10.0.0.5"}, Egresses: o.Spec.Egresses},
	}
	return o
}

// egressCluster runs Egresses on another network and has one client for each problem.
func egressCluster() objects {
	failed := egressClient("failed", "node-b", "internet")
	failed.Status = v1alpha1.EgressClientStatus{
		Conditions: []metav1.Condition{is("Ready", metav1.ConditionFalse, "SetUpFailed", "berthd of node node-b: the kernel has no Foo over UDP", time.Minute)},
		Node:       &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientFailed, Message: "the kernel has no Foo over UDP"},
	}
	refused := egressClient("refused", "node-a", "internet")
	refused.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "none", Reason: "NotFound", Message: "there is no Egress egress/none", Named: true}}
	refused.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "NotFound", "there is no Egress egress/none", time.Minute)
	alone := egressClient("alone", "node-a", "down")
	alone.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "NoGateway", "Egress egress/down has no ready gateway", time.Minute)
	typo := egressClient("typo", "node-a") // the operator reports an invalid annotation without an Egress name
	typo.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Reason: "Invalid", Message: "metadata.annotations[egress.berth.dev/egress]: names nothing", Named: true}}
	typo.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "Invalid", typo.Spec.Refused[0].Message, time.Minute)
	host := egressClient("host", "node-a")
	host.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "any", Reason: "Invalid", Message: "names Egress egress/any, which a host-network pod cannot use: take it out", Named: true}}
	host.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "Invalid", host.Spec.Refused[0].Message, time.Minute)
	unseen := egressClient("unseen", "node-a", "internet")
	unseen.Status = v1alpha1.EgressClientStatus{}
	down := egress("down", is("Available", metav1.ConditionFalse, "NoGateways", "no gateway is ready: pod down-a is Pending", time.Minute), is("ServiceReady", metav1.ConditionTrue, "Applied", "", time.Hour),
		is("ClientsReady", metav1.ConditionFalse, "Waiting", "pod default/alone is not served", time.Minute))
	down.Status.ReadyGateways, down.Status.Gateways = 0, nil
	idle := egress("idle", is("Available", metav1.ConditionFalse, "NoReplicas", "spec.replicas is 0", time.Minute))
	idle.Spec.Replicas, idle.Status = new(int32(0)), v1alpha1.EgressStatus{Conditions: idle.Status.Conditions}
	fresh := egress("fresh")
	fresh.Status = v1alpha1.EgressStatus{}
	taken := egress("taken", is("Available", metav1.ConditionTrue, "GatewaysReady", "", time.Hour), is("ServiceReady", metav1.ConditionFalse, "NameTaken", "Service taken: it is not this Egress's", time.Minute))
	return objects{
		now:      at,
		nodes:    []corev1.Node{node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue)},
		daemons:  daemonsOf([]corev1.Pod{berthd("node-a", "none", true), berthd("node-b", "none", true)}),
		operator: operatorObjects{pods: []corev1.Pod{operatorPod("berth-operator-0", true)}},
		egresses: []v1alpha1.Egress{taken, egress("internet"), down, idle, fresh},
		clients:  []v1alpha1.EgressClient{egressClient("web-0", "node-a", "internet"), failed, refused, alone, typo, host, unseen, egressClient("nothing", "node-a")},
	}
}

// nodeCluster is in node mode and includes the responses of its nodes.
func nodeCluster() objects {
	sick := document("node-b")
	sick.Totals.Available, sick.Totals.Waiting = 0, 3
	sick.LastError = "AssignPrivateIpAddresses: RequestLimitExceeded"
	sick.Conditions = append(sick.Conditions, introspect.Condition{Type: "AddressesAvailable", Status: "False", Reason: "Exhausted", Message: "AssignPrivateIpAddresses: RequestLimitExceeded", Since: at.Add(-time.Minute)})
	other := berthd("node-b", "", true)
	other.Spec.Containers[0].Image = "berth-node:v0.9.2"
	return objects{
		now:     at,
		nodes:   []corev1.Node{node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue), node("node-c", corev1.ConditionTrue)},
		daemons: daemonsOf([]corev1.Pod{berthd("node-a", "", true), other, berthd("node-c", "eni", true)}),
		answers: map[string]answer{
			"node-a": {doc: document("node-a")}, "node-b": {doc: sick}, "node-c": {err: errors.New("no answer within 10s")},
		},
	}
}
