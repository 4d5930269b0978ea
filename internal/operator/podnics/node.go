package podnics

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/watched"
)

// held tells whether a node may still have a port plugged, and until when at the longest
// that counts; zero: until it says otherwise. A node that is gone, or declared out of
// service, holds nothing. One that does not answer holds for a grace from the end of the
// pod (idle; zero while it lives), or from when the node was found not to be ready. To
// be wrong harms nobody else: a VPC drops what comes from a port that is deleted, or bound
// elsewhere.
func held(says *v1alpha1.PodNICNode, port string, node *corev1.Node, idle, now time.Time, grace time.Duration) (bool, time.Time) {
	if says == nil || says.State != v1alpha1.NodePlugged || says.PortID != port {
		return false, time.Time{}
	}
	if node == nil || watched.OutOfService(node) {
		return false, time.Time{}
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
	return until.IsZero() || now.Before(until), until
}

// coolUntil is until when a port is kept that nobody needs: some time from when its PodNIC was
// deleted or, if that is later, its node said that it is unplugged. Either is recorded in the
// PodNIC, and counts for every operator. A node is believed for a grace from the deletion,
// which is as long as it is waited for, so that one that lies keeps no port for longer.
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

// hostOf is the name by which a VPC's provider knows a node; empty with the reason if
// nobody says it.
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
