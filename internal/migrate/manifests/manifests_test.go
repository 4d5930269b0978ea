package manifests

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork/template"
)

// read reads files of testdata, and texts.
func read(t *testing.T, of ...string) (in Input) {
	t.Helper()
	for _, name := range of {
		text := name
		if !strings.Contains(name, "\n") {
			raw, err := os.ReadFile("testdata/" + name)
			if err != nil {
				t.Fatal(err)
			}
			text = string(raw)
		}
		objects, err := Read(name, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		in.Objects = append(in.Objects, objects...)
	}
	return in
}

func eniConfigText(name, spec string) string {
	return "apiVersion: crd.k8s.amazonaws.com/v1alpha1\nkind: ENIConfig\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n"
}

// A Node gets the settings of the ENIConfig that the Amazon VPC CNI would choose for it. Nodes that name it by an annotation
// are to be labelled, and no text of a Node becomes a command.
func TestENIConfigs(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	in := read(t, eniConfigText("zone-b", "subnet: subnet-0b"), eniConfigText("zone-a", "subnet: subnet-0a, securityGroups: [sg-2, sg-1, sg-2]"), eniConfigText("default", "subnet: subnet-0d"), `
apiVersion: v1
kind: NodeList
items:
- {apiVersion: v1, kind: Node, metadata: {name: node-a, annotations: {k8s.amazonaws.com/eniConfig: zone-a}}}
- {apiVersion: v1, kind: Node, metadata: {name: node-b, annotations: {k8s.amazonaws.com/eniConfig: zone-a}, labels: {topology.kubernetes.io/zone: zone-a}}}
- {apiVersion: v1, kind: Node, metadata: {name: node-c, annotations: {k8s.amazonaws.com/eniConfig: "$(reboot)\n"}}}
- {apiVersion: v1, kind: Node, metadata: {name: node-d}}
`)
	in.ENIConfigLabel = zone
	out, err := Convert(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{
		`Node "node-c" names ENIConfig "$(reboot)\n" by an annotation, which is not a valid label value`,
		"kubectl label node node-a topology.kubernetes.io/zone=zone-a --overwrite # it names its ENIConfig by an annotation",
	}; !cmp.Equal(out.Comments, want) {
		t.Errorf("comments: %s", cmp.Diff(want, out.Comments))
	}
	var all []v1alpha1.NodeNetworkTemplate
	for _, o := range out.Objects {
		all = append(all, *o.(*v1alpha1.NodeNetworkTemplate))
	}
	for name, want := range map[string]*template.Choice{
		"zone-a": {Name: "NodeNetworkTemplate/zone-a", ENI: v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0a"}, SecurityGroups: []string{"sg-1", "sg-2"}}},
		"zone-b": {Name: "NodeNetworkTemplate/zone-b", ENI: v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0b"}}},
		"zone-c": nil,
		"":       {Name: "NodeNetworkTemplate/default", ENI: v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0d"}}},
	} {
		labels := map[string]string{"other": "x"}
		if name != "" {
			labels[zone] = name
		}
		got, err := template.Choose(labels, all)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("label %q: choice (-want +got):\n%s", name, d)
		}
	}
}

func policyText(name, spec string) string {
	return "apiVersion: vpcresources.k8s.aws/v1beta1\nkind: SecurityGroupPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {" + spec + "}\n"
}

// A NICPolicy selects the same pods and gives them the same groups. Where several policies of a namespace add up, a comment
// says that NICPolicies do not.
func TestSecurityGroupPolicies(t *testing.T) {
	out, err := Convert(read(t,
		policyText("db", "serviceAccountSelector: {matchLabels: {role: db}}, securityGroups: {groupIds: [sg-2, sg-1]}"),
		policyText("web", "podSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}, securityGroups: {groupIds: [sg-3]}"),
	))
	if err != nil || len(out.Objects) != 2 || len(out.Comments) != 2 || !strings.HasPrefix(out.Comments[0], `namespace "shop" has 2 SecurityGroupPolicies`) {
		t.Fatalf("objects = %v, comments = %q, error = %v", out.Objects, out.Comments, err)
	}
	want := v1alpha1.NICPolicySpec{ServiceAccountSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"role": "db"}}, SecurityGroups: []string{"sg-1", "sg-2"}}
	if got := out.Objects[0].(*v1alpha1.NICPolicy); got.Namespace != "shop" || got.Name != "db" || !cmp.Equal(got.Spec, want) {
		t.Errorf("NICPolicy db: %s", cmp.Diff(want, got.Spec))
	}
}

// CiliumNodes of either version become NodeNetworks with the same parameters; comments name what Berth has nothing for.
func TestCiliumNodes(t *testing.T) {
	out, err := Convert(read(t, "ciliumnodes-1.20.yaml", "ciliumnodes-1.19.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]v1alpha1.NodeNetworkSpec{}
	for _, o := range out.Objects {
		n := o.(*v1alpha1.NodeNetwork)
		got[n.Name] = n.Spec
	}
	want := map[string]v1alpha1.NodeNetworkSpec{
		"node-a": {InstanceID: "i-0123456789abcdef0", InstanceType: "m5.large", ENI: v1alpha1.ENISpec{
			VPCID: "vpc-0f1", AvailabilityZone: "eu-central-1a", FirstInterfaceIndex: new(int32(1)), SubnetTags: map[string]string{"net": "pods"}, SecurityGroupTags: map[string]string{"net": "pods"},
			DeleteOnTermination: new(true), UsePrimaryAddress: new(false), PreAllocate: new(int32(8)), MinAllocate: new(int32(10)), MaxAboveWatermark: new(int32(2)),
		}},
		"node-b": {InstanceID: "i-0123456789abcdef1", InstanceType: "c6i.xlarge", ENI: v1alpha1.ENISpec{
			VPCID: "vpc-0f1", AvailabilityZone: "eu-central-1b", FirstInterfaceIndex: new(int32(0)), SubnetIDs: []string{"subnet-0c1", "subnet-0c2"}, SecurityGroups: []string{"sg-0c1"},
			DeleteOnTermination: new(false), UsePrimaryAddress: new(true), PreAllocate: new(int32(16)), MaxAllocate: new(int32(110)), PrefixDelegation: new(true),
		}},
		"node-c": {InstanceID: "i-0123456789abcdef2", InstanceType: "m5.large", ENI: v1alpha1.ENISpec{
			VPCID: "vpc-0f1", AvailabilityZone: "eu-central-1a", FirstInterfaceIndex: new(int32(0)), SubnetIDs: []string{"subnet-0a1"}, DeleteOnTermination: new(true), PreAllocate: new(int32(8)),
		}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("NodeNetworks (-want +got):\n%s", d)
	}
	if want := []string{"aws ec2 create-tags --resources eni-0d1 --tags Key=berth.dev/unmanaged,Value=true"}; !cmp.Equal(out.Comments, want) {
		t.Errorf("comments = %q, want %q", out.Comments, want)
	}
	for _, field := range []string{"node-b: spec.eni.subnet-tags", "node-b: spec.ipam.static-ip-tags", "node-b: spec.eni.exclude-interface-tags", "node-c: spec.eni.node-subnet-id"} {
		if !strings.Contains(strings.Join(out.Lost, "\n"), field) {
			t.Errorf("lost: %q, want %s too", out.Lost, field)
		}
	}
	if len(out.Lost) != 4 {
		t.Errorf("lost: %q, want 4", out.Lost)
	}
}

// cilium-config counts for all nodes, and one template stands for nodes that agree.
func TestCiliumConfigAndTemplate(t *testing.T) {
	in := read(t, "ciliumnodes-1.20.yaml", "cilium-config.yaml")
	out, err := Convert(in)
	if err != nil || out.Objects[1].(*v1alpha1.NodeNetwork).Spec.ENI.PrefixDelegation != nil {
		t.Errorf("node-b has prefixes, which cilium-config turned off: error = %v", err)
	}
	with := read(t, "ciliumnodes-1.20.yaml", "ciliumnodes-1.19.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config}\ndata: {ipam: eni, enable-ipv4: 'true', enable-ipv6: 'true', aws-enable-prefix-delegation: 'true'}\n")
	out, err = Convert(with)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []*bool{new(true), new(true), nil} { // node-c has disable-prefix-delegation
		if got := out.Objects[i].(*v1alpha1.NodeNetwork).Spec.ENI; !cmp.Equal(got.PrefixDelegation, want) || got.IPFamilies != "dual" {
			t.Errorf("%s with prefixes in cilium-config: %+v", out.Objects[i].(*v1alpha1.NodeNetwork).Name, got)
		}
	}
	in.Template = "all"
	if _, err := Convert(in); err == nil || !strings.Contains(err.Error(), "CiliumNode node-b (ciliumnodes-1.20.yaml): spec.eni.minAllocate differs from that of CiliumNode node-a") {
		t.Errorf("template for nodes that differ: error = %v", err)
	}
	in.Objects = append(in.Objects[:1:1], in.Objects[2:]...)
	out, err = Convert(in)
	if err != nil || len(out.Objects) != 1 {
		t.Fatal(err, out.Objects)
	}
	if got := out.Objects[0].(*v1alpha1.NodeNetworkTemplate); got.Name != "all" || got.Spec.ENI.VPCID != "" || *got.Spec.ENI.PreAllocate != 8 {
		t.Errorf("template = %+v", got)
	}
	var text bytes.Buffer
	if err := out.Write(&text); err != nil || !strings.Contains(text.String(), "---\napiVersion: berth.dev/v1alpha1\n") {
		t.Errorf("text = %s, %v", &text, err)
	}
}

// Every mistake is told with the object, the file and the field; nothing is converted then.
func TestErrors(t *testing.T) {
	node := func(spec string) string {
		return "apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata: {name: a}\nspec: {" + spec + "}\n"
	}
	for name, tt := range map[string]struct{ in, want string }{
		"unknown kind":         {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", `Secret a (x): kind Secret of apiVersion "v1" is unknown: expected ENIConfig of crd.k8s.amazonaws.com/v1alpha1`},
		"unknown version":      {"apiVersion: cilium.io/v3\nkind: CiliumNode\nmetadata: {name: a}\n", `kind CiliumNode of apiVersion "cilium.io/v3" is unknown`},
		"unknown field":        {node("instance-id: i-1, eni: {instance-type: m5.large, color: red}"), `CiliumNode a (x): unknown field "spec.eni.color"`},
		"wrong type":           {node("instance-id: i-1, eni: {first-interface-index: one}"), "CiliumNode a (x): json: cannot unmarshal string into Go struct field"},
		"no instance":          {node("eni: {instance-type: m5.large}"), "CiliumNode a (x): spec.instance-id is empty"},
		"no type":              {node("instance-id: i-1"), "spec.eni.instance-type is empty"},
		"other mode":           {node("instance-id: i-1, eni: {instance-type: a.b}, ipam: {podCIDRs: [10.1.0.0/24]}"), "spec.ipam.podCIDRs is set"},
		"index":                {node("instance-id: i-1, eni: {instance-type: a.b, first-interface-index: 16}"), "spec.eni.first-interface-index is 16: expected 0 to 15"},
		"cluster pool":         {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config}\ndata: {ipam: cluster-pool}\n---\n" + node("instance-id: i-1, eni: {instance-type: a.b}"), `data.ipam is "cluster-pool": expected eni`},
		"other ConfigMap":      {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n", "expected cilium-config of Cilium"},
		"no name":              {"apiVersion: v1\nkind: Node\nmetadata: {}\n", "Node (x): metadata.name is empty"},
		"twice":                {node("") + "---\n" + node(""), "CiliumNode a is in x and in x"},
		"no subnet":            {eniConfigText("a", "securityGroups: []"), "ENIConfig a (x): spec.subnet is empty: expected a subnet ID"},
		"long ENIConfig":       {eniConfigText("a.name.of.more.than.63.characters.cannot.be.the.value.of.a.label", "subnet: subnet-1"), "its name cannot be the value of a label: must be no more than 63"},
		"policy without pods":  {policyText("a", "securityGroups: {groupIds: [sg-1]}"), "SecurityGroupPolicy shop/a (x): spec has neither podSelector nor serviceAccountSelector"},
		"policy without group": {policyText("a", "podSelector: {}"), "spec.securityGroups.groupIds is empty"},
		"no kind":              {"a: 1\n", "x, document 1: expected an object with apiVersion and kind"},
		"alias":                {"a: &x 1\nb: *x\n", "it has YAML aliases"},
		"no YAML":              {"{\n", "x, document 1:"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Read("x", strings.NewReader(tt.in))
			var out Output
			if err == nil {
				out, err = Convert(Input{Objects: objects})
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(out.Objects) > 0 {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}
