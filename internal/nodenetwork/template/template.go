// Package template determines which NodeNetworkTemplate's settings apply to a node. It consists of
// pure functions, shared by the operator and, in node mode, the daemon.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Choice is the settings of one object for a node.
type Choice struct {
	Name  string // KIND/NAME of the object
	ENI   v1alpha1.ENISpec
	Drain bool // ENIs that differ from the settings are drained
}

// Choose returns the settings of the template that selects a Node with some labels: the one with the
// highest priority, then the oldest, then the first by name. It returns nil if none does. The error
// names templates with an invalid selector, which select nothing.
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

// Merge returns a node's own settings overridden by those of a template, with the rules of
// nodenetwork.Over.
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
