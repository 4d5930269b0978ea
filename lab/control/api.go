// Package control runs a lab as a separate process and controls it from others: JSON over HTTP on a Unix
// socket in the lab's directory.
package control

import (
	"path/filepath"

	"github.com/berthnet/berth/lab/run/node"
)

// SocketPath returns the control socket of the lab in dir.
func SocketPath(dir string) string { return filepath.Join(dir, "control.sock") }

// LogPath returns the path of the lab process's log.
func LogPath(dir string) string { return filepath.Join(dir, "lab.log") }

func lockPath(dir string) string { return filepath.Join(dir, "lab.lock") }

// PodRequest requests a pod.
type PodRequest struct {
	Node      string             `json:"node"`
	Name      string             `json:"name"` // empty: the lab chooses
	Namespace string             `json:"namespace,omitempty"`
	Ports     []node.PortMapping `json:"ports,omitempty"`
	Timeout   string             `json:"timeout,omitempty"` // such as "90s"

	Annotations map[string]string `json:"annotations,omitempty"` // annotations of its object
}

// PodReply is a running pod.
type PodReply struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Took      string   `json:"took"`
}

// Target is where a command runs.
type Target struct {
	Netns string `json:"netns"`
	// Mounts is the path of a machine's mount namespace, or empty for other targets.
	Mounts string   `json:"mounts,omitempty"`
	Env    []string `json:"env"` // name=value, to add
}

// FaultRequest requests a fault. The meaning of Action and Value depends on the kind; see Kinds.
type FaultRequest struct {
	Kind   string `json:"kind"`
	Action string `json:"action,omitempty"` // an EC2 action or a pattern, such as Describe*
	Value  string `json:"value,omitempty"`
	Count  int    `json:"count,omitempty"` // number of calls; 0: until cleared
}

// DownReply lists what was removed with the lab.
type DownReply struct {
	Removed []string `json:"removed"`
}

type failure struct {
	Error string `json:"error"`
}
