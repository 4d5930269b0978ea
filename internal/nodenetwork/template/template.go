// Package template decides which NodeNetworkTemplate's settings a node has. It consists of
// pure functions, which the operator and, in node mode, the daemon share.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Choice is the settings of one object for a node.
type Choice struct {
	Name  string // of the object, as KIND/NAME
	ENI   v1alpha1.ENISpec
	Drain bool // ENIs that differ from the settings are drained
}

// Choose returns the settings of the template that selects a Node with some labels: the one with the
// highest priority, then the oldest, then the first by name. Nil: no template selects it. The error
// names templates with an invalid selector; they select nothing.
func Choose(has map[string]string, all []v1alpha1.NodeNetworkTemplate) (*Choice, error) {
	var best *v1alpha1.NodeNetworkTemplate
	var errs []error
	for i := range all {
		t := &all[i]
		selector, err := t.Spec.NodeSelector.Compile()
		if err != nil {
			errs = append(errs, fmt.Errorf("NodeNetworkTemplate %s: spec.nodeSelector: %w", t.Name, err))
			continue
		}
		if selector.Matches(labels.Set(has)) && (best == nil || before(t, best) < 0) {
			best = t
		}
	}
	slices.SortFunc(errs, func(x, y error) int { return cmp.Compare(x.Error(), y.Error()) })
	if best == nil {
		return nil, errors.Join(errs...)
	}
	return &Choice{"NodeNetworkTemplate/" + best.Name, best.Spec.ENI, best.Spec.OutdatedENIs == v1alpha1.DrainOutdated}, errors.Join(errs...)
}

// before orders templates by precedence.
func before(x, y *v1alpha1.NodeNetworkTemplate) int {
	return cmp.Or(cmp.Compare(y.Spec.Priority, x.Spec.Priority), x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
}

// Merge returns a node's own settings with those of a template in their place, as nodenetwork.Over
// does.
func Merge(own, over *v1alpha1.ENISpec) *v1alpha1.ENISpec {
	out := own.DeepCopy()
	if len(over.SubnetIDs)+len(over.SubnetTags) > 0 {
		out.SubnetIDs, out.SubnetTags = over.SubnetIDs, over.SubnetTags
	}
	if len(over.SecurityGroups)+len(over.SecurityGroupTags) > 0 {
		out.SecurityGroups, out.SecurityGroupTags = over.SecurityGroups, over.SecurityGroupTags
	}
	if nodenetwork.HasWarmTargets(over) || nodenetwork.HasWatermarks(over) {
		out.MinAllocate, out.PreAllocate, out.MaxAboveWatermark, out.MaxAllocate = over.MinAllocate, over.PreAllocate, over.MaxAboveWatermark, over.MaxAllocate
		out.WarmENITarget, out.WarmIPTarget, out.MinimumIPTarget, out.WarmPrefixTarget = over.WarmENITarget, over.WarmIPTarget, over.MinimumIPTarget, over.WarmPrefixTarget
	}
	out.MaxENIs, out.MaxPods = cmp.Or(over.MaxENIs, out.MaxENIs), cmp.Or(over.MaxPods, out.MaxPods)
	out.FirstInterfaceIndex = cmp.Or(over.FirstInterfaceIndex, out.FirstInterfaceIndex)
	out.DeleteOnTermination = cmp.Or(over.DeleteOnTermination, out.DeleteOnTermination)
	out.UsePrimaryAddress = cmp.Or(over.UsePrimaryAddress, out.UsePrimaryAddress)
	out.Trunk = cmp.Or(over.Trunk, out.Trunk)
	out.PrefixDelegation = cmp.Or(over.PrefixDelegation, out.PrefixDelegation)
	return out.DeepCopy() // shares nothing with the template
}

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
