// Package attachment is the record of every attachment on the node: which
// interface of which sandbox holds which address, and which released
// addresses still cool. Records are small files that outlive the daemon and
// vanish with the kernel state they describe.
package attachment

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

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

// ID is a name for the key that is safe in file names and always 32
// characters long: the first half of the SHA-256 of its parts, in hexadecimal.
func (k Key) ID() string {
	sum := sha256.Sum256([]byte(k.Network + "\x00" + k.ContainerID + "\x00" + k.IfName))
	return hex.EncodeToString(sum[:16])
}

// Pod is what the runtime tells of the pod behind a sandbox (CNI_ARGS of
// Kubernetes). All fields are empty outside Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}
