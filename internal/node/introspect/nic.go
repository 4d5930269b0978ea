package introspect

import "net/netip"

// NIC is an interface of a pod that is a port of a VPC. Addresses of two NICs may be the
// same: they are of the port's network.
type NIC struct {
	Namespace    string         `json:"namespace"`
	Pod          string         `json:"pod"`
	ContainerID  string         `json:"containerID"`
	Network      string         `json:"network"`   // of the runtime's configuration
	Interface    string         `json:"interface"` // in the sandbox
	PodNIC       string         `json:"podNIC"`    // the object's name, in the pod's namespace
	Port         string         `json:"port"`      // its ID at the provider
	MAC          string         `json:"mac"`
	Addresses    []netip.Prefix `json:"addresses"`
	MTU          int            `json:"mtu"` // bytes
	DefaultRoute bool           `json:"defaultRoute,omitempty"`
	Plug         string         `json:"plug"`               // how it is connected: OVS, OVSHybrid, Netns or VLAN
	HostLink     string         `json:"hostLink,omitempty"` // on the node, where there is one
	State        string         `json:"state,omitempty"`    // plugging or changing, while a running pod gets it or its addresses change
	Binding      string         `json:"binding,omitempty"`  // of a virtual machine's: bridge or tap
}
