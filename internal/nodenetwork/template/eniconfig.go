package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthnet/berth/api/v1alpha1"
)

// ENIConfig is the configuration of a group of nodes in the Amazon VPC CNI, of apiVersion
// crd.k8s.amazonaws.com/v1alpha1 (its documentation, "Custom networking").
type ENIConfig struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Subnet         string   `json:"subnet"`
		SecurityGroups []string `json:"securityGroups"`
	} `json:"spec"`
}

const (
	// ENIConfigKey is the key of the annotation, or else the label, with which a Node names
	// its ENIConfig, unless ENI_CONFIG_ANNOTATION_DEF or ENI_CONFIG_LABEL_DEF say otherwise.
	ENIConfigKey = "k8s.amazonaws.com/eniConfig"
	// defaultENIConfig is the ENIConfig of Nodes with neither.
	defaultENIConfig = "default"
)

// FromENIConfigs returns templates that replace ENIConfigs for Nodes with a label: one for each value,
// and for the ENIConfig named default one for Nodes without the label. As with ENIConfigs, eth0 serves
// no pods. The error names those that cannot be replaced.
func FromENIConfigs(key string, all []ENIConfig) (out []v1alpha1.NodeNetworkTemplate, err error) {
	var errs []error
	for i := range all {
		t, err := fromENIConfig(key, &all[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("ENIConfig %s: %w", all[i].Name, err))
			continue
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y v1alpha1.NodeNetworkTemplate) int { return strings.Compare(x.Name, y.Name) })
	return out, errors.Join(errs...)
}

func fromENIConfig(key string, c *ENIConfig) (t v1alpha1.NodeNetworkTemplate, err error) {
	if c.Spec.Subnet == "" {
		return t, errors.New("spec.subnet is empty: expected a subnet ID such as subnet-0123456789abcdef0")
	}
	t.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetworkTemplate"}
	t.Name = c.Name
	t.Spec.ENI = v1alpha1.ENISpec{
		FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{c.Spec.Subnet}, SecurityGroups: slices.Compact(slices.Sorted(slices.Values(c.Spec.SecurityGroups))),
	}
	t.Spec.OutdatedENIs = v1alpha1.RetainOutdated
	if c.Name == defaultENIConfig {
		t.Spec.NodeSelector.MatchExpressions = []v1alpha1.LabelRequirement{{Key: key, Operator: string(metav1.LabelSelectorOpDoesNotExist)}}
		return t, nil
	}
	if wrong := validation.IsValidLabelValue(c.Name); len(wrong) > 0 {
		return t, fmt.Errorf("its name cannot be the value of a label: %s", wrong[0])
	}
	t.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(c.Name)}
	return t, nil
}
