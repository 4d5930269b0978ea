package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// Mode is the source of pods' addresses.
type Mode string

// Modes. In all but NodeMode, and there with Options.VPCPorts, Egress, NetworkPolicies or NodeNetworkTemplates, the lab has a Kubernetes
// API with Nodes and Pods. In OperatorMode the nodes' own credentials permit no EC2 call. In PoolMode and PortMode there
// is no EC2: a data centre (package site) replaces the VPC. In PortMode only machines use its network, because pods are
// in networks of an OpenStack or an Alcor (package portcloud).
const (
	NodeMode     Mode = "node"     // ENIs, by each node's own berthd
	OperatorMode Mode = "operator" // ENIs, by berth-operator for all nodes
	PoolMode     Mode = "pool"     // blocks of address pools, by berth-operator
	PortMode     Mode = "port"     // ports of a VPC, by berth-operator
)

// Modes are all modes.
var Modes = []Mode{NodeMode, OperatorMode, PoolMode, PortMode}

// hasPorts reports whether pods may have NICs that are ports of VPCs.
func (o Options) hasPorts() bool { return o.Mode == PortMode || o.VPCPorts }

// hasOperators reports whether a lab without kubelets has operators.
func (o Options) hasOperators() bool {
	return o.Mode != NodeMode || o.VPCPorts || o.Egress || o.NetworkPolicies
}

// hasKube reports whether a lab without kubelets has a Kubernetes API.
func (o Options) hasKube() bool {
	return o.hasOperators() || o.NodeNetworkTemplates || o.AmazonVPCCNI != ""
}

// modelled reports whether the lab itself acts as kubelets and controllers.
func (o Options) modelled() bool { return o.hasKube() && o.Kubelets == nil }

// HasEC2 reports whether the mode's cloud is EC2.
func (m Mode) HasEC2() bool { return m == NodeMode || m == OperatorMode }

// PodFamilies returns the families of each pod's addresses.
func (o Options) PodFamilies() ipfamily.Set {
	switch {
	case o.Mode == PoolMode:
		return ipfamily.Dual
	case o.Mode.HasEC2() && o.IPFamilies != "":
		return o.IPFamilies
	default:
		return ipfamily.OnlyIPv4
	}
}

// OperatorKey is the access key of the operators. Its permissions are those of deploy/iam/operator.json in the lab's
// cluster, unless the spec has a key with the same ID.
var OperatorKey = spec.AccessKey{ID: "AKIALABLABLABLABOPER", Secret: "lab-secret-access-key-that-only-operators-have"}

// Programs of the lab, in BinDir.
func (o Options) programs() []string {
	programs := []string{"berthd", "berth"}
	if o.hasOperators() {
		programs = append(programs, "berth-operator")
	}
	if o.Egress {
		programs = append(programs, gatewayProgram)
	}
	return programs
}

func (o Options) completeMode() (Options, error) {
	switch o.Mode {
	case "", NodeMode:
		o.Mode = NodeMode
	case OperatorMode, PoolMode, PortMode:
	default:
		return o, fmt.Errorf("mode %q: want one of %v", o.Mode, Modes)
	}
	if o.VPCPorts && o.Mode != PortMode && o.Kubelets != nil {
		return o, errors.New("ports of VPCs in addition to other addresses are not supported with kubelets: omit kubelets")
	}
	if o.NodeNetworkTemplates && (o.Mode != NodeMode || o.Kubelets != nil) {
		return o, errors.New("NodeNetworkTemplates can only be enabled in node mode without kubelets: in operator mode they are always enabled")
	}
	if o.AmazonVPCCNI != "" && (o.Mode != NodeMode || o.Kubelets != nil) {
		return o, errors.New("the Amazon VPC CNI is for node mode without kubelets")
	}
	if !o.hasKube() {
		if o.Kubelets != nil {
			return o.completeAssets()
		}
		return o, nil
	}
	if o.OperatorCount == 0 && o.hasOperators() {
		o.OperatorCount = 1
	}
	if o.OperatorCount < 0 || o.OperatorCount > maxOperators {
		return o, fmt.Errorf("%d operators: want 1 to %d", o.OperatorCount, maxOperators)
	}
	return o.completeAssets()
}

// completeAssets finds the programs of Kubernetes.
func (o Options) completeAssets() (Options, error) {
	if o.KubeAssets == "" {
		o.KubeAssets = os.Getenv("KUBEBUILDER_ASSETS")
	}
	if o.KubeAssets == "" && o.Kubelets != nil {
		return o, errors.New("kubelets need Kubernetes: set KUBEBUILDER_ASSETS to the directory that hack/kubebox.sh prints (make demo MODE=cluster does)")
	}
	if o.KubeAssets == "" {
		mode := o.Mode
		if o.VPCPorts {
			mode = PortMode
		}
		return o, fmt.Errorf("%[1]s mode needs a Kubernetes control plane: set KUBEBUILDER_ASSETS to the directory that hack/kubebox.sh prints (make demo MODE=%[1]s does)", mode)
	}
	return o, nil
}

// withoutNodePermissions returns a spec whose instances have no permissions, and whose operators have a key.
func withoutNodePermissions(s spec.Spec, cluster string) spec.Spec {
	s.Roles = slices.Clone(s.Roles)
	for i := range s.Roles {
		s.Roles[i].Actions, s.Roles[i].Policy = nil, ""
	}
	if len(s.AccessKeys) == 0 {
		s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	}
	if slices.ContainsFunc(s.AccessKeys, func(k spec.AccessKey) bool { return k.ID == OperatorKey.ID }) {
		return s
	}
	key := OperatorKey
	key.Policy = deploy.OperatorPolicy(cluster)
	s.AccessKeys = append(slices.Clone(s.AccessKeys), key)
	return s
}

// inCluster returns the spec for the lab's cluster, or nil without a spec.
func (o Options) inCluster() *spec.Spec {
	if o.Spec == nil || !o.Mode.HasEC2() {
		return o.Spec
	}
	s := inCluster(*o.Spec, clusterName(o.ID))
	if o.Mode == OperatorMode {
		s = withoutNodePermissions(s, clusterName(o.ID))
	}
	return &s
}

// inCluster returns a spec whose instances have the tags of a cluster's nodes, whose security groups have the tags of
// groups that the operator may use, and whose policies have the cluster's name for CLUSTER_NAME.
func inCluster(s spec.Spec, cluster string) spec.Spec {
	tags := map[string]string{"kubernetes.io/cluster/" + cluster: "owned"}
	maps.Copy(tags, s.LaunchTags)
	s.LaunchTags = tags
	s.VPCs = slices.Clone(s.VPCs)
	for i, v := range s.VPCs {
		s.VPCs[i].SecurityGroups = slices.Clone(v.SecurityGroups)
		for k, g := range v.SecurityGroups {
			tags := map[string]string{"berth.dev/cluster": cluster}
			maps.Copy(tags, g.Tags)
			s.VPCs[i].SecurityGroups[k].Tags = tags
		}
	}
	s.Roles = slices.Clone(s.Roles)
	for i, r := range s.Roles {
		s.Roles[i].Policy = strings.ReplaceAll(r.Policy, clusterHere, cluster)
	}
	return s
}

// clusterHere is the placeholder for the cluster's name in policies.
const clusterHere = "CLUSTER_NAME"

// DefaultSpec returns a VPC with two subnets in two zones, and nodes named node-1 and so on spread over them. Its
// security group allows traffic from the VPC, from the on-premises network and to node ports, and all egress. The nodes'
// role has the permissions of deploy/iam/node.json in the lab's cluster.
func DefaultSpec(nodes int, instanceType string) spec.Spec {
	s := spec.Default()
	s.VPCs[0].SecurityGroups = []spec.SecurityGroup{{
		Name:        "default",
		Description: "the VPC, the on-premises network and node ports",
		Ingress: []spec.Rule{
			{Protocol: "-1", CIDRs: []netip.Prefix{s.VPCs[0].CIDRs[0], netip.MustParsePrefix("192.168.100.0/24")}},
			{Protocol: "tcp", FromPort: 30000, ToPort: 32767, CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
			{Protocol: "udp", FromPort: 30000, ToPort: 32767, CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		},
	}}
	s.Instances = nil
	s.Roles[0].Actions, s.Roles[0].Policy = nil, deploy.NodePolicy(clusterHere)
	for i := range nodes {
		s.Instances = append(s.Instances, spec.Instance{
			Name: fmt.Sprintf("node-%d", i+1), Type: instanceType,
			Subnet: s.VPCs[0].Subnets[i%len(s.VPCs[0].Subnets)].Name, Role: s.Roles[0].Name,
		})
	}
	s.Delays = spec.Delays{
		Attach: spec.Duration(200 * time.Millisecond),
		Link:   spec.Duration(300 * time.Millisecond),
		Detach: spec.Duration(200 * time.Millisecond),
	}
	return s
}
