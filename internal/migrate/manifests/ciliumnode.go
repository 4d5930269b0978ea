package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// ciliumNode is a node of Cilium 1.15 to 1.20 (pkg/k8s/apis/cilium.io/v2, pkg/aws/types, pkg/ipam/types). Fields that are
// not about ENIs and their addresses are kept as JSON.
type ciliumNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		InstanceID string          `json:"instance-id"`
		BootID     json.RawMessage `json:"bootid"`
		Addresses  json.RawMessage `json:"addresses"`
		Health     json.RawMessage `json:"health"`
		Ingress    json.RawMessage `json:"ingress"`
		Encryption json.RawMessage `json:"encryption"`
		Azure      json.RawMessage `json:"azure"`
		Alibaba    json.RawMessage `json:"alibaba-cloud"`
		ENI        ciliumENI       `json:"eni"`
		IPAM       ciliumIPAM      `json:"ipam"`
	} `json:"spec"`
	Status struct {
		ENI struct {
			ENIs map[string]ciliumInterface `json:"enis"`
		} `json:"eni"`
		IPAM    json.RawMessage `json:"ipam"`
		Azure   json.RawMessage `json:"azure"`
		Alibaba json.RawMessage `json:"alibaba-cloud"`
	} `json:"status"`
}

type ciliumENI struct {
	InstanceType            string            `json:"instance-type"`
	FirstInterfaceIndex     *int32            `json:"first-interface-index"`
	SecurityGroups          []string          `json:"security-groups"`
	SecurityGroupTags       map[string]string `json:"security-group-tags"`
	SubnetIDs               []string          `json:"subnet-ids"`
	SubnetTags              map[string]string `json:"subnet-tags"`
	NodeSubnetID            string            `json:"node-subnet-id"`
	VPCID                   string            `json:"vpc-id"`
	AvailabilityZone        string            `json:"availability-zone"`
	ExcludeInterfaceTags    map[string]string `json:"exclude-interface-tags"`
	DeleteOnTermination     *bool             `json:"delete-on-termination"`
	UsePrimaryAddress       *bool             `json:"use-primary-address"`
	DisablePrefixDelegation *bool             `json:"disable-prefix-delegation"`
}

type ciliumIPAM struct {
	MinAllocate       int32             `json:"min-allocate"`
	MaxAllocate       int32             `json:"max-allocate"`
	PreAllocate       int32             `json:"pre-allocate"`
	MaxAboveWatermark int32             `json:"max-above-watermark"`
	StaticIPTags      map[string]string `json:"static-ip-tags"`
	Pool              json.RawMessage   `json:"pool"`
	IPv6Pool          json.RawMessage   `json:"ipv6-pool"`
	Pools             json.RawMessage   `json:"pools"`
	PodCIDRs          []string          `json:"podCIDRs"`
}

// ciliumInterface has the fields of an ENI that the conversion reads; others are ignored.
type ciliumInterface struct {
	Number       int               `json:"number"`
	Tags         map[string]string `json:"tags"`
	Prefixes     []string          `json:"prefixes"`
	IPv6Prefixes []string          `json:"ipv6-prefixes"`
}

// UnmarshalJSON ignores unknown fields, also where the object is decoded strictly.
func (i *ciliumInterface) UnmarshalJSON(raw []byte) error {
	type plain ciliumInterface
	return json.Unmarshal(raw, (*plain)(i))
}

// ciliumConfig is what the ConfigMap cilium-config says of all nodes.
type ciliumConfig struct {
	known              bool // it was read
	prefixes           bool // aws-enable-prefix-delegation
	ipv4, ipv6         bool // enable-ipv4, enable-ipv6
	usePrimaryAddress  bool // aws-use-primary-address
	subnetIDs, subnets string
}

// configMaps checks that the only ConfigMap is Cilium's, which ciliumNodes reads.
func configMaps(of []Object, _ *Input, _ *Output) error {
	var errs []error
	for i := range of {
		if of[i].Name != ciliumConfigName {
			errs = append(errs, fmt.Errorf("%s (%s): is not a configuration that can be converted: expected %s of Cilium", &of[i], of[i].Source, ciliumConfigName))
		}
	}
	return errors.Join(errs...)
}

const ciliumConfigName = "cilium-config"

func readCiliumConfig(in *Input) (c ciliumConfig, err error) {
	for _, o := range in.Of("", "ConfigMap") {
		var m corev1.ConfigMap
		if err := o.Lenient(&m); err != nil {
			return c, err
		}
		if mode := m.Data["ipam"]; mode != "eni" {
			return c, fmt.Errorf("%s (%s): data.ipam is %q: expected eni, the only mode that can be converted", &o, o.Source, mode)
		}
		c = ciliumConfig{known: true, subnetIDs: m.Data["subnet-ids-filter"], subnets: m.Data["subnet-tags-filter"]}
		for key, to := range map[string]*bool{
			"aws-enable-prefix-delegation": &c.prefixes, "enable-ipv4": &c.ipv4, "enable-ipv6": &c.ipv6, "aws-use-primary-address": &c.usePrimaryAddress,
		} {
			if text := m.Data[key]; text != "" {
				if *to, err = strconv.ParseBool(text); err != nil {
					return c, fmt.Errorf("%s (%s): data[%s] is %q: expected true or false", &o, o.Source, key, text)
				}
			}
		}
	}
	return c, nil
}

// ciliumNodes adds a NodeNetwork for each CiliumNode or, if the options name a template, one NodeNetworkTemplate for
// all, which must then agree.
func ciliumNodes(of []Object, in *Input, out *Output) error {
	config, err := readCiliumConfig(in)
	errs := []error{err}
	var first *v1alpha1.NodeNetwork
	for i := range of {
		o := &of[i]
		var n ciliumNode
		if err := o.Decode(&n); err != nil {
			errs = append(errs, err)
			continue
		}
		made, err := n.convert(o, config, out)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s (%s): %w", o, o.Source, err))
		case in.Template == "":
			out.Objects = append(out.Objects, made)
		case first == nil:
			first = made
		default:
			if field := differs(&first.Spec.ENI, &made.Spec.ENI); field != "" {
				errs = append(errs, fmt.Errorf("%s (%s): %s differs from that of CiliumNode %s, so that no single template fits: convert them without --template, or in groups", o, o.Source, field, first.Name))
			}
		}
	}
	if first != nil {
		t := &v1alpha1.NodeNetworkTemplate{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetworkTemplate"},
			ObjectMeta: metav1.ObjectMeta{Name: in.Template}, Spec: v1alpha1.NodeNetworkTemplateSpec{ENI: first.Spec.ENI, OutdatedENIs: v1alpha1.RetainOutdated},
		}
		t.Spec.ENI.VPCID, t.Spec.ENI.AvailabilityZone, t.Spec.ENI.IPFamilies = "", "", ""
		out.Objects = append(out.Objects, t)
	}
	if config.subnetIDs+config.subnets != "" {
		out.Lose(&Object{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: ciliumConfigName}}, "data[subnet-ids-filter] and data[subnet-tags-filter]", "set spec.eni.subnetIDs or spec.eni.subnetTags of each object")
	}
	return errors.Join(errs...)
}

// differs returns the first field in which two nodes differ that a template could not have for both, or "".
func differs(x, y *v1alpha1.ENISpec) string {
	a, b := *x, *y
	a.VPCID, a.AvailabilityZone, a.IPFamilies = b.VPCID, b.AvailabilityZone, b.IPFamilies
	for i := range reflect.TypeFor[v1alpha1.ENISpec]().NumField() {
		if !reflect.DeepEqual(reflect.ValueOf(a).Field(i).Interface(), reflect.ValueOf(b).Field(i).Interface()) {
			name, _, _ := strings.Cut(reflect.TypeFor[v1alpha1.ENISpec]().Field(i).Tag.Get("json"), ",")
			return "spec.eni." + name
		}
	}
	return ""
}

func (n *ciliumNode) convert(o *Object, config ciliumConfig, out *Output) (*v1alpha1.NodeNetwork, error) {
	e, ipam := &n.Spec.ENI, &n.Spec.IPAM
	switch {
	case n.Spec.InstanceID == "":
		return nil, errors.New("spec.instance-id is empty: expected an EC2 instance ID, as in Cilium's mode eni")
	case e.InstanceType == "":
		return nil, errors.New("spec.eni.instance-type is empty: expected an EC2 instance type, as in Cilium's mode eni")
	case len(ipam.PodCIDRs) > 0:
		return nil, errors.New("spec.ipam.podCIDRs is set: the node is not in Cilium's mode eni")
	case e.FirstInterfaceIndex != nil && (*e.FirstInterfaceIndex < 0 || *e.FirstInterfaceIndex > 15):
		return nil, fmt.Errorf("spec.eni.first-interface-index is %d: expected 0 to 15", *e.FirstInterfaceIndex)
	}
	made := &v1alpha1.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: n.Spec.InstanceID, InstanceType: e.InstanceType},
	}
	to := &made.Spec.ENI
	*to = v1alpha1.ENISpec{
		VPCID: e.VPCID, AvailabilityZone: e.AvailabilityZone, FirstInterfaceIndex: cmp.Or(e.FirstInterfaceIndex, new(int32(0))),
		SubnetIDs: e.SubnetIDs, SubnetTags: e.SubnetTags, SecurityGroups: e.SecurityGroups, SecurityGroupTags: e.SecurityGroupTags,
		DeleteOnTermination: e.DeleteOnTermination, UsePrimaryAddress: e.UsePrimaryAddress,
		MinAllocate: positive(ipam.MinAllocate), PreAllocate: positive(ipam.PreAllocate), MaxAboveWatermark: positive(ipam.MaxAboveWatermark), MaxAllocate: positive(ipam.MaxAllocate),
	}
	if config.usePrimaryAddress && to.UsePrimaryAddress == nil {
		to.UsePrimaryAddress = new(true)
	}
	if len(to.SubnetIDs) > 0 { // IDs take precedence in Cilium; Berth refuses both
		if len(to.SubnetTags) > 0 {
			out.Lose(o, "spec.eni.subnet-tags", "spec.eni.subnet-ids takes precedence")
		}
		to.SubnetTags = nil
	}
	if len(to.SecurityGroups) > 0 {
		if len(to.SecurityGroupTags) > 0 {
			out.Lose(o, "spec.eni.security-group-tags", "spec.eni.security-groups takes precedence")
		}
		to.SecurityGroupTags = nil
	}
	if len(to.SubnetIDs)+len(to.SubnetTags) == 0 && e.NodeSubnetID != "" {
		// Cilium prefers the node's subnet, and takes others of the zone once it is nearly full.
		to.SubnetIDs = []string{e.NodeSubnetID}
		out.Lose(o, "spec.eni.node-subnet-id", "new ENIs are in "+e.NodeSubnetID+" alone; Cilium takes other subnets of the zone once it is nearly full. Add them to spec.eni.subnetIDs")
	}
	to.PrefixDelegation = n.prefixes(config)
	to.IPFamilies = n.families(config)
	if len(ipam.StaticIPTags) > 0 {
		out.Lose(o, "spec.ipam.static-ip-tags", "Elastic IP addresses of nodes remain as they are, and new nodes get none")
	}
	n.excluded(o, out)
	return made, nil
}

// excluded comments on ENIs that Cilium leaves alone because of their tags.
func (n *ciliumNode) excluded(o *Object, out *Output) {
	tags := n.Spec.ENI.ExcludeInterfaceTags
	if len(tags) == 0 {
		return
	}
	out.Lose(o, "spec.eni.exclude-interface-tags", "Berth uses the primary ENI, ENIs that it created and adopted ENIs; tag others that it must leave alone with berth.dev/unmanaged=true")
	for _, id := range slices.Sorted(maps.Keys(n.Status.ENI.ENIs)) {
		matches := true
		for key, value := range tags {
			has, ok := n.Status.ENI.ENIs[id].Tags[key]
			matches = matches && ok && has == value
		}
		if matches && isENI(id) {
			out.Comment("aws ec2 create-tags --resources %s --tags Key=berth.dev/unmanaged,Value=true", id)
		}
	}
}

// isENI reports whether text is the ID of an ENI. IDs become part of a command, and a node's Cilium agent can write them.
func isENI(text string) bool {
	rest, ok := strings.CutPrefix(text, "eni-")
	return ok && rest != "" && strings.Trim(rest, "0123456789abcdef") == ""
}

// prefixes returns whether addresses come in /28 prefixes. Without cilium-config the node's ENIs tell.
func (n *ciliumNode) prefixes(config ciliumConfig) *bool {
	on := config.prefixes
	if !config.known {
		for _, e := range n.Status.ENI.ENIs {
			on = on || len(e.Prefixes) > 0
		}
	}
	if off := n.Spec.ENI.DisablePrefixDelegation; !on || off != nil && *off {
		return nil
	}
	return new(true)
}

// families returns the IP families of pods, "" for IPv4 alone. Without cilium-config the node's ENIs tell.
func (n *ciliumNode) families(config ciliumConfig) string {
	ipv4, ipv6 := config.ipv4, config.ipv6
	if !config.known {
		ipv4 = true
		for _, e := range n.Status.ENI.ENIs {
			ipv6 = ipv6 || len(e.IPv6Prefixes) > 0
		}
	}
	switch {
	case ipv4 && ipv6:
		return "dual"
	case ipv6:
		return "ipv6"
	default:
		return ""
	}
}

// positive returns nil for 0, which Cilium does not distinguish from unset.
func positive(n int32) *int32 {
	if n == 0 {
		return nil
	}
	return &n
}
