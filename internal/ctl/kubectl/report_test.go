package kubectl

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/test/harness/hostile"
)

func leaseOf(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
}

func TestStatusTables(t *testing.T) {
	well := nodeCluster()
	well.nodes, well.daemons = well.nodes[:1], map[string]daemon{"node-a": well.daemons["node-a"]}
	blind := objects{now: at, unread: []string{"Nodes: nodes is forbidden", "pods of berthd: pods is forbidden"}}
	for name, o := range map[string]objects{
		"operator": operatorCluster(), "pool": poolCluster(), "node": nodeCluster(), "port": portCluster(), "egress": egressCluster(), "well": well, "blind": blind, "empty": {now: at},
	} {
		t.Run(name, func(t *testing.T) {
			s := statusOf(o)
			if s.Healthy != (name == "well") {
				t.Errorf("healthy = %v, want %v", s.Healthy, name == "well")
			}
			golden(t, "status-"+name+".txt", printed(t, func(p *view.Printer) { writeStatus(p, s, false, false) }))
			golden(t, "status-"+name+"-wide.txt", printed(t, func(p *view.Printer) { writeStatus(p, s, true, false) }))
			var out bytes.Buffer
			if err := view.WriteYAML(&out, s); err != nil {
				t.Fatal(err)
			}
			golden(t, "status-"+name+".yaml", out.String())
			var again Status
			if err := yaml.UnmarshalStrict(out.Bytes(), &again); err != nil || len(again.Nodes) != len(s.Nodes) {
				t.Errorf("YAML: error %v, %d nodes; want %d", err, len(again.Nodes), len(s.Nodes))
			}
		})
	}
}

// The table of a large cluster lists the nodes with problems and counts the others.
func TestStatusWithManyNodes(t *testing.T) {
	o := objects{now: at, daemons: map[string]daemon{}}
	var pods []corev1.Pod
	for i := range 3000 {
		name := fmt.Sprintf("node-%04d", i)
		o.nodes = append(o.nodes, node(name, corev1.ConditionTrue))
		pods = append(pods, berthd(name, "eni-operator", i != 1234))
		o.networks = append(o.networks, network(name, 5, 1, 2))
	}
	o.daemons, o.operator.pods = daemonsOf(pods), []corev1.Pod{operatorPod("berth-operator-0", true)}
	s := statusOf(o)
	table := printed(t, func(p *view.Printer) { writeStatus(p, s, false, false) })
	if n := strings.Count(table, "\n"); n > 15 || !strings.Contains(table, "node-1234") || !strings.Contains(table, "2999 more nodes without problems") ||
		!strings.Contains(table, "15000 used, 6000 warm, 3000 cooling") {
		t.Errorf("status has %d lines, want at most 15 with the unhealthy node and the totals:\n%.2000s", n, table)
	}
	if every := printed(t, func(p *view.Printer) { writeStatus(p, s, false, true) }); strings.Count(every, "\n") < 3000 {
		t.Error("--all does not list every node")
	}
}

// An IPv6-only subnet is shown with its IPv6 CIDR.
func TestTopOfIPv6OnlySubnet(t *testing.T) {
	n := network("node-a", 0, 0, 0)
	n.Status.ENI.ENIs = map[string]v1alpha1.ENI{"eni-1": {DeviceIndex: 1, SubnetID: "subnet-6", SubnetIPv6CIDRs: []string{"2001:db8::/64"}}}
	top := topOf(objects{networks: []v1alpha1.NodeNetwork{n}})
	if len(top.Subnets) != 1 || top.Subnets[0].CIDR != "2001:db8::/64" {
		t.Errorf("subnets = %+v, want 2001:db8::/64", top.Subnets)
	}
}

func TestTopAndPoolTables(t *testing.T) {
	nodeMode := nodeCluster()
	two := document("node-d")
	two.ENIs = append(two.ENIs, two.ENIs[0])
	two.ENIs[1].ID, two.ENIs[1].Subnet, two.ENIs[1].DeviceIndex, two.ENIs[1].Used, two.ENIs[1].Prefixes = "eni-2", "subnet-2", 1, 20, 2
	nodeMode.answers["node-d"] = answer{doc: two}
	nodeMode.daemons["node-d"] = nodeMode.daemons["node-a"]
	for name, o := range map[string]objects{"operator": operatorCluster(), "pool": poolCluster(), "node": nodeMode, "empty": {}} {
		top := topOf(o)
		golden(t, "top-"+name+".txt", printed(t, func(p *view.Printer) { writeTop(p, top, 20, false) }))
		if name == "operator" {
			golden(t, "top-most.txt", printed(t, func(p *view.Printer) { writeTop(p, top, 1, false) }))
		}
	}
	pools := Pools{Pools: poolsOf(poolCluster())}
	golden(t, "pools.txt", printed(t, func(p *view.Printer) { writePools(p, pools, false, false) }))
	golden(t, "pools-wide.txt", printed(t, func(p *view.Printer) { writePools(p, pools, true, true) }))
}

// The view of VPCs lists exactly the NICs with problems, each with a remedy.
func TestVPCs(t *testing.T) {
	o := portCluster()
	list := VPCs{VPCs: vpcRows(o)}
	prog := &program{Options: Options{Now: func() time.Time { return at }}}
	for name, wide := range map[string]bool{"vpcs.txt": false, "vpcs-wide.txt": true} {
		golden(t, name, printed(t, func(p *view.Printer) { writeVPCs(p, list, prog, wide, wide) }))
	}
	blue := list.VPCs[0]
	verdicts := map[string]diagnose.Verdict{}
	for _, n := range blue.Troubled {
		verdicts[n.Name] = n.Diagnosis.Verdict
	}
	want := map[string]diagnose.Verdict{
		"full-eth0": diagnose.NoPort, "unbound-eth0": diagnose.NotBound, "unbound-eth1": diagnose.NotBound, "silent-eth0": diagnose.NotPlugged,
		"moved-eth0": diagnose.BoundElsewhere, "lost-eth0": diagnose.PodMissing,
	}
	if diff := cmp.Diff(want, verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if blue.NICs != 8 || blue.Phases["Active"] != 3 || blue.Subnets[0].Waiting != 0 || blue.Subnets[1].Waiting != 1 {
		t.Errorf("VPC blue = %+v, want 8 NICs, 3 of them active, and one waiting for the second subnet", blue)
	}
	o.pods = nil // the pods' nodes are unknown
	if n := len(vpcRows(o)[0].Troubled); n != 4 {
		t.Errorf("%d NICs need attention without pods, want 4", n)
	}
}

// Thousands of NICs with the same problem take one line and a bounded table.
func TestVPCWithManyNICs(t *testing.T) {
	o := portCluster()
	o.nics = nil
	for i := range 5000 {
		n := nic(fmt.Sprintf("web-%04d", i), "node-a", "192.168.0.3")
		n.Status.Phase, n.Status.Plug, n.Status.Node = v1alpha1.PhaseCreated, nil, nil
		n.Status.Conditions[1] = is("Bound", metav1.ConditionFalse, "BindingFailed", "no agent", time.Minute)
		o.nics = append(o.nics, n)
	}
	prog := &program{Options: Options{Now: func() time.Time { return at }}}
	out := printed(t, func(p *view.Printer) { writeVPCs(p, VPCs{VPCs: vpcRows(o)}, prog, false, false) })
	if !strings.Contains(out, "NotBound of 5000 NICs, such as default/web-0000-eth0") || !strings.Contains(out, "4950 more NICs") || strings.Count(out, "\n") > 300 {
		t.Errorf("vpcs has %d lines, want at most 300 with a summary:\n%.3000s", strings.Count(out, "\n"), out)
	}
	if s := printed(t, func(p *view.Printer) { writeStatus(p, statusOf(o), false, false) }); strings.Count(s, "\n") > 40 {
		t.Errorf("status has %d lines, want at most 40:\n%.3000s", strings.Count(s, "\n"), s)
	}
}

// The view of Egresses lists each problem of an Egress or a client once, with a remedy.
func TestEgresses(t *testing.T) {
	o := egressCluster()
	rows := egressRows(o)
	list := Egresses{Egresses: rows, Strays: strays(o, rows)}
	prog := &program{Options: Options{Now: func() time.Time { return at }}}
	for name, wide := range map[string]bool{"egresses.txt": false, "egresses-wide.txt": true} {
		golden(t, name, printed(t, func(p *view.Printer) { writeEgresses(p, list, prog, wide, wide) }))
	}
	got := map[string][]string{}
	for _, e := range list.Egresses {
		for _, c := range e.Troubled {
			got[e.Name] = append(got[e.Name], fmt.Sprint(c.Pod, " ", c.Diagnosis.Verdict))
		}
		if e.unwell() != (e.Name != "idle") {
			t.Errorf("%s: problems = %q", e.Name, e.Trouble)
		}
	}
	want := map[string][]string{"internet": {"failed NotSetUp", "unseen NotLookedAt"}, "none": {"refused EgressRefused"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("clients with problems (-want +got):\n%s", diff)
	}
	others := map[string]diagnose.Verdict{}
	for _, c := range list.Strays {
		others[c.Pod] = c.Diagnosis.Verdict
	}
	if diff := cmp.Diff(map[string]diagnose.Verdict{"typo": diagnose.EgressRefused, "host": diagnose.EgressRefused}, others); diff != "" {
		t.Errorf("other clients (-want +got):\n%s", diff)
	}
	o.egresses, o.unread = nil, []string{"Egresses: forbidden"} // the existing Egresses are unknown
	list = Egresses{Egresses: egressRows(o), Unread: o.unread}
	golden(t, "egresses-unread.txt", printed(t, func(p *view.Printer) { writeEgresses(p, list, prog, true, true) }))
	for _, e := range list.Egresses {
		if !slices.Equal(e.Trouble, summary(e.Troubled, "pods")) || e.unwell() != (e.Name != "down") {
			t.Errorf("%s: problems = %q", e.Name, e.Trouble)
		}
	}
}

// Without any Egress the status still shows pods that name one, and the missing operator.
func TestStatusWithoutEgresses(t *testing.T) {
	o := nodeCluster()
	refused := egressClient("refused", "node-a")
	refused.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "none", Reason: "NotFound", Message: "there is no Egress egress/none", Named: true}}
	refused.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "NotFound", "there is no Egress egress/none", time.Minute)
	o.clients = []v1alpha1.EgressClient{refused}
	out := printed(t, func(p *view.Printer) { writeStatus(p, statusOf(o), false, false) })
	for _, want := range []string{"! Egress egress/none: the Egress does not exist", "no berth-operator pod exists: no pod becomes a client of an Egress", "CLIENTS"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	o.clients[0].Spec.Refused[0].Name, o.clients[0].Spec.Refused[0].Reason = "", "Invalid" // no Egress row lists this client
	o.clients[0].Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "Invalid", "names nothing", time.Minute)
	s := statusOf(o)
	out = printed(t, func(p *view.Printer) { writeStatus(p, s, false, false) })
	if len(s.Egresses) > 0 || !strings.Contains(out, "EgressRefused: default/refused: It may not use an Egress (Invalid): names nothing") || !strings.Contains(out, "CLIENTS") {
		t.Errorf("Egresses = %+v, want none; status:\n%s", s.Egresses, out)
	}
}

// A missing operator is not a problem of a node.
func TestMissingOperatorIsNoNodeProblem(t *testing.T) {
	o := egressCluster()
	for _, n := range statusOf(o).Nodes {
		if unwell := len(n.Trouble) > 0; unwell != (n.Name == "node-b") { // berthd failed there
			t.Errorf("%s: problems = %q", n.Name, n.Trouble)
		}
	}
}

// The view of a pod that uses Egresses lists the gateways of its tunnels.
func TestPodTunnels(t *testing.T) {
	o := egressClient("web-0", "node-a", "internet")
	c := clientOf(&o, diagnose.EgressClient(diagnose.ClientFacts{Now: at, Client: &o}))
	prefixes := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	addrs := func(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }
	d := PodDetails{
		Namespace: "default", Name: "web-0", Node: "node-a", Diagnosis: diagnose.Diagnosis{Verdict: diagnose.Works, OK: true, Summary: "The pod has 10.0.0.5."}, Egress: &c,
		Attachments: []introspect.Attachment{{
			Allocated: introspect.Allocated{Address: netip.MustParseAddr("10.0.0.5"), Interface: "eth0"}, State: "ready", Checked: true,
			Egress: &introspect.Egress{Egresses: []introspect.UsedEgress{
				{Namespace: "egress", Name: "internet", Destinations: prefixes, Gateways: []introspect.EgressGateway{
					{ID: 1, Addresses: addrs("10.3.0.1"), Chosen: true}, {ID: 2, Addresses: addrs("10.3.0.2"), Ending: true, Chosen: true}, {ID: 3, Addresses: addrs("10.3.0.3")},
				}},
				{Namespace: "egress", Name: "bank", Destinations: prefixes, Service: addrs("10.96.0.7")}, {Namespace: "egress", Name: "down", Destinations: prefixes},
			}},
		}, {Allocated: introspect.Allocated{Interface: "eth1"}, Egress: &introspect.Egress{Forward: true}}},
	}
	prog := &program{Options: Options{Now: func() time.Time { return at }}}
	golden(t, "pod-egress.txt", printed(t, func(p *view.Printer) { writePod(p, d, prog, false) }))
}

func TestOutputIsEscapedForTerminals(t *testing.T) {
	check := func(name, out string) {
		t.Helper()
		if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s prints unescaped text: %q", name, out[max(0, i-20):min(len(out), i+20)])
		}
		if strings.Contains(out, "\nFORGED") || len(out) < 100 {
			t.Errorf("%s prints a forged line or too little:\n%s", name, out)
		}
	}
	s, top := statusOf(operatorCluster()), topOf(operatorCluster())
	doc := document("node-a")
	d := NodeDetails{Node: s.Nodes[0], Document: &doc, Events: []Event{{}}, Unread: []string{""}, Unasked: "x"}
	pod := PodDetails{Addresses: []string{""}, Events: []Event{{}}, Unread: []string{""}}
	pools := Pools{Pools: poolsOf(poolCluster())}
	s.Pools = poolsOf(poolCluster())
	s.VPCs, s.Egresses = vpcRows(portCluster()), egressRows(egressCluster())
	egresses := Egresses{Egresses: egressRows(egressCluster()), Strays: strays(egressCluster(), nil)}
	d.EgressPods = clientRows(egressCluster())
	pod.Egress = &clientRows(egressCluster())[0]
	pod.Attachments = []introspect.Attachment{{Egress: &introspect.Egress{Egresses: []introspect.UsedEgress{{Gateways: []introspect.EgressGateway{{}}}}}}}
	vpcs := VPCs{VPCs: vpcRows(portCluster())}
	d.Ports, pod.NICs = vpcs.VPCs[0].Troubled[:1:1], vpcs.VPCs[0].Troubled[1:2:2]
	for _, v := range []any{&s, &top, &d, &pod, &pools, &vpcs, &egresses} {
		hostile.Fill(v)
		for name, write := range map[string]func(*bytes.Buffer) error{
			"JSON": func(b *bytes.Buffer) error { return view.WriteJSON(b, v) },
			"YAML": func(b *bytes.Buffer) error { return view.WriteYAML(b, v) },
			"line": func(b *bytes.Buffer) error { return view.WriteLine(b, v) },
		} {
			var out bytes.Buffer
			if err := write(&out); err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprintf("%s of %T", name, v), out.String())
		}
	}
	prog := &program{Options: Options{Now: func() time.Time { return at }}}
	check("status", printed(t, func(p *view.Printer) { writeStatus(p, s, true, true) }))
	check("top", printed(t, func(p *view.Printer) { writeTop(p, top, 20, true) }))
	check("node", printed(t, func(p *view.Printer) { writeNode(p, d, prog, true) }))
	check("pod", printed(t, func(p *view.Printer) { writePod(p, pod, prog, true) }))
	check("vpcs", printed(t, func(p *view.Printer) { writeVPCs(p, vpcs, prog, true, true) }))
	check("egresses", printed(t, func(p *view.Printer) { writeEgresses(p, egresses, prog, true, true) }))
	check("pools", printed(t, func(p *view.Printer) { writePools(p, pools, true, true) }))
}
