package podnics

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/watched"
)

// nodeHost describes where a NIC's port is to be bound.
type nodeHost struct {
	name string // the provider's name of the node; "" if unknown or not to be bound there
	why  string // why there is no name, to show to users
	full bool   // whether the node has the maximum number of NICs
}

// hold says whether a node may have a port plugged.
type hold struct {
	held  bool
	until time.Time // when it ends at the latest; zero if only the node's report ends it
}

// holdOf decides whether a node may have a port plugged. A node that is gone or out of service holds nothing. A node that does not
// answer holds the port for a grace period from the end of the pod (idle, zero while the pod lives), or from when the node became
// not ready. A wrong decision harms no other NIC: a VPC drops packets of a port that is deleted or bound elsewhere.
func holdOf(says *v1alpha1.PodNICNode, port string, node *corev1.Node, idle, now time.Time, grace time.Duration) hold {
	if says == nil || says.State != v1alpha1.NodePlugged || says.PortID != port || node == nil || watched.OutOfService(node) {
		return hold{}
	}
	until := time.Time{}
	if !idle.IsZero() {
		until = idle.Add(grace)
	}
	if r := watched.Readiness(node); r != nil && r.Status != corev1.ConditionTrue {
		if at := r.LastTransitionTime.Add(grace); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	return hold{until.IsZero() || now.Before(until), until}
}

// coolUntil returns until when a port that is no longer needed is kept: for cooling after its PodNIC was deleted or, if later, its
// node reported it unplugged. Both times are recorded in the PodNIC, so that all operators use the same. A report counts only
// within a grace period from the deletion, as long as it is waited for: a faulty node cannot keep a port longer.
func coolUntil(deleted time.Time, says *v1alpha1.PodNICNode, port string, grace, cooling time.Duration) time.Time {
	since := deleted
	if says != nil && says.PortID == port && says.State == v1alpha1.NodeUnplugged && says.Since.After(since) {
		since = says.Since.Time
		if last := deleted.Add(grace); since.After(last) {
			since = last
		}
	}
	return since.Add(cooling)
}

// hostOf returns the name by which a VPC's provider knows a node, or why there is none.
func hostOf(n *corev1.Node, name string, vpc v1alpha1.VPCSpec) (host, why string) {
	label := vpc.HostLabel
	switch {
	case n == nil:
		return "", "there is no Node " + name
	case vpc.Provider == v1alpha1.ProviderEC2:
		if host = nodenetwork.InstanceOf(n.Spec.ProviderID); host == "" {
			why = fmt.Sprintf("Node %s has the spec.providerID %.80q, expected one of an EC2 instance, such as aws:///eu-central-1a/i-0a1b2c3d4e5f67890", name, n.Spec.ProviderID)
		}
		return host, why
	case label == "":
		return n.Name, ""
	case n.Labels[label] == "":
		return "", "Node " + name + " lacks the label " + label + " (spec.hostLabel of the VPC)"
	}
	return n.Labels[label], ""
}
