package lab

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// VPCStatus summarizes a VPC object.
type VPCStatus struct {
	Name    string `json:"name"`
	Network string `json:"network"` // ID
	Subnets string `json:"subnets"` // name and CIDR of each
	NICs    int    `json:"nics"`
	Ready   string `json:"ready"`         // of the condition
	Why     string `json:"why,omitempty"` // when it is not
}

// NICStatus summarizes a PodNIC and its port in the cloud.
type NICStatus struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	VPC       string   `json:"vpc"`
	Phase     string   `json:"phase"`
	Pod       string   `json:"pod,omitempty"`
	Node      string   `json:"node,omitempty"`
	Interface string   `json:"interface,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	Port      string   `json:"port,omitempty"`   // ID
	State     string   `json:"status,omitempty"` // of the port in the cloud; empty without one
	Made      bool     `json:"made"`             // Berth made the port
	Why       string   `json:"why,omitempty"`    // of conditions that are not as they should be
}

// addPorts adds VPCs and PodNICs.
func (s *Status) addPorts(ctx context.Context, l *Lab) error {
	if l.Mode == PortMode {
		for i := range s.Nodes {
			s.Nodes[i].Address = l.Site.Addrs(s.Nodes[i].Name).IPv4
		}
	}
	vpcs := &v1alpha1.VPCList{}
	if err := l.Kube.Client.List(ctx, vpcs); err != nil {
		return err
	}
	for i := range vpcs.Items {
		s.VPCs = append(s.VPCs, vpcStatus(&vpcs.Items[i]))
	}
	nics, err := l.Kube.PodNICs(ctx)
	if err != nil {
		return err
	}
	ports, err := l.Ports.Ports(ctx)
	if err != nil {
		return err
	}
	states := map[string]string{}
	for _, p := range ports {
		states[p.ID] = p.Status
	}
	for i := range nics {
		s.NICs = append(s.NICs, nicStatus(&nics[i], states))
	}
	return nil
}

func vpcStatus(o *v1alpha1.VPC) VPCStatus {
	s := VPCStatus{Name: o.Name, Network: o.Status.NetworkID, NICs: int(o.Status.NICs)}
	var subnets []string
	for _, sub := range o.Status.Subnets {
		subnets = append(subnets, strings.TrimSpace(sub.Name+" "+sub.CIDR+" "+sub.IPv6CIDR))
	}
	s.Subnets = strings.Join(subnets, ", ")
	s.Ready, _ = readiness(o.Status.Conditions)
	s.Why = Untrue(o.Status.Conditions)
	return s
}

func nicStatus(n *v1alpha1.PodNIC, states map[string]string) NICStatus {
	s := NICStatus{
		Name: n.Name, Namespace: n.Namespace, VPC: n.Spec.VPC, Phase: string(n.Status.Phase), Node: n.Status.NodeName, Interface: n.Status.Interface,
		MAC: n.Status.MAC, Port: n.Status.PortID, State: states[n.Status.PortID], Made: n.Status.Made, Why: Untrue(n.Status.Conditions),
	}
	if n.Status.Pod != nil {
		s.Pod = n.Status.Pod.Name
	}
	for _, a := range n.Status.Addresses {
		s.Addresses = append(s.Addresses, a.CIDR)
	}
	return s
}

// Untrue lists the conditions that are not True, with reasons and messages. It is for kinds whose
// conditions all should be True.
func Untrue(conditions []metav1.Condition) string {
	var bad []string
	for _, c := range conditions {
		if c.Status != metav1.ConditionTrue {
			bad = append(bad, fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return strings.Join(bad, "; ")
}
