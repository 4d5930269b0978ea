package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthnet/berth/api/v1alpha1"
)

// eniConfig is the configuration of a group of nodes in the Amazon VPC CNI (its documentation, "Custom networking").
type eniConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Subnet         string   `json:"subnet"`
		SecurityGroups []string `json:"securityGroups"`
	} `json:"spec"`
	Status json.RawMessage `json:"status"`
}

const (
	// ENIConfigKey is the key of the annotation, or else the label, with which a Node names
	// its ENIConfig, unless ENI_CONFIG_ANNOTATION_DEF or ENI_CONFIG_LABEL_DEF say otherwise.
	ENIConfigKey = "k8s.amazonaws.com/eniConfig"
	// defaultENIConfig is the ENIConfig of Nodes with neither of the two.
	defaultENIConfig = "default"
)

// eniConfigs adds templates that replace ENIConfigs for Nodes with a label: one for each value, and one for Nodes
// without the label from the ENIConfig named default. As with ENIConfigs, eth0 serves no pods.
func eniConfigs(of []Object, in *Input, out *Output) error {
	key := cmp.Or(in.ENIConfigLabel, ENIConfigKey)
	var errs []error
	var templates []*v1alpha1.NodeNetworkTemplate
	for i := range of {
		var c eniConfig
		err := of[i].Decode(&c)
		if err == nil {
			var t *v1alpha1.NodeNetworkTemplate
			if t, err = fromENIConfig(key, &c); err == nil {
				templates = append(templates, t)
				continue
			}
			err = fmt.Errorf("%s (%s): %w", &of[i], of[i].Source, err)
		}
		errs = append(errs, err)
	}
	slices.SortFunc(templates, func(x, y *v1alpha1.NodeNetworkTemplate) int { return cmp.Compare(x.Name, y.Name) })
	for _, t := range templates {
		out.Objects = append(out.Objects, t)
	}
	commands, err := relabel(in.Of("", "Node"), cmp.Or(in.ENIConfigAnnotation, ENIConfigKey), key)
	for _, c := range commands {
		out.Comment("%s", c)
	}
	return errors.Join(append(errs, err)...)
}

func fromENIConfig(key string, c *eniConfig) (*v1alpha1.NodeNetworkTemplate, error) {
	if c.Spec.Subnet == "" {
		return nil, errors.New("spec.subnet is empty: expected a subnet ID such as subnet-0123456789abcdef0")
	}
	t := &v1alpha1.NodeNetworkTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetworkTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
	}
	t.Spec.ENI = v1alpha1.ENISpec{
		FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{c.Spec.Subnet}, SecurityGroups: slices.Compact(slices.Sorted(slices.Values(c.Spec.SecurityGroups))),
	}
	t.Spec.OutdatedENIs = v1alpha1.RetainOutdated
	if c.Name == defaultENIConfig {
		t.Spec.NodeSelector.MatchExpressions = []v1alpha1.LabelRequirement{{Key: key, Operator: string(metav1.LabelSelectorOpDoesNotExist)}}
		return t, nil
	}
	if wrong := validation.IsValidLabelValue(c.Name); len(wrong) > 0 {
		return nil, fmt.Errorf("its name cannot be the value of a label: %s", wrong[0])
	}
	t.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(c.Name)}
	return t, nil
}

// relabel returns the commands that copy the annotation of Nodes to the label. In the Amazon
// VPC CNI the annotation takes precedence. A kubelet can write any text into annotations of
// its Node, so a value that is not a valid label value never becomes part of a command.
func relabel(nodes []Object, annotation, label string) (commands []string, err error) {
	var errs []error
	for i := range nodes {
		var n corev1.Node
		errs = append(errs, nodes[i].Lenient(&n))
		name, has := n.Annotations[annotation]
		switch {
		case !has || n.Labels[label] == name:
		case name == "" || len(validation.IsValidLabelValue(name)) > 0 || len(validation.IsDNS1123Subdomain(n.Name)) > 0:
			commands = append(commands, fmt.Sprintf("Node %q names ENIConfig %q by an annotation, which is not a valid label value", n.Name, name))
		default:
			commands = append(commands, fmt.Sprintf("kubectl label node %s %s=%s --overwrite # it names its ENIConfig by an annotation", n.Name, label, name))
		}
	}
	slices.Sort(commands)
	return commands, errors.Join(errs...)
}
