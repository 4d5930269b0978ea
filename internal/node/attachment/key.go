// Package attachment is the record of every attachment on the node: which
// interface of which sandbox holds which address, and which released
// addresses still cool. Records are small files that outlive the daemon and
// vanish with the kernel state they describe.
package attachment

import "fmt"

// Key names one attachment: one interface of one sandbox in one network
// (CNI specification 1.1, "attachment").
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String reads "network/containerID/ifName".
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Network, k.ContainerID, k.IfName)
}

// Pod is what the runtime tells of the pod behind a sandbox (CNI_ARGS of
// Kubernetes). All fields are empty outside Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}
