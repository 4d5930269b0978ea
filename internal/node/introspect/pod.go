package introspect

import "time"

// PodPath answers about one pod of the node, given by its namespace and name as
// the query's "namespace" and "name". To ask changes nothing.
const PodPath = Path + "/pod"

// Pod is what a node knows of one of its pods. Lists are never null; both are
// empty for a pod that the runtime has not asked an address for, or not here.
type Pod struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Node        string       `json:"node"`        // in Kubernetes
	Time        time.Time    `json:"time"`        // of the answer
	Attachments []Attachment `json:"attachments"` // oldest first; one a sandbox and interface
	Waiting     []Waiting    `json:"waiting"`     // ADDs that wait for an address, NICs or egress, oldest first
}

// Attachment is an address of a pod with the path to it, which was compared with
// the kernel as CHECK does. Where the pod's own interface is a NIC, the address is that
// NIC's.
type Attachment struct {
	Allocated
	NICs     []NIC   `json:"nics"`             // all that are ports of a VPC
	Egress   *Egress `json:"egress,omitempty"` // none for a pod that has nothing of it
	State    string  `json:"state"`            // pending (half made), ready, releasing (half removed)
	HostLink string  `json:"hostLink"`         // on the node; empty where the pod's own interface is a NIC without one
	MTU      int     `json:"mtu"`              // bytes
	Checked  bool    `json:"checked"`          // the kernel was looked at
	Fault    string  `json:"fault,omitempty"`
	// Rules are the node's policy rules that the pod's packets meet, by priority,
	// as the kernel has them.
	Rules []string `json:"rules"`
}

// Waiting is an ADD that waits for an address, NICs or egress.
type Waiting struct {
	ContainerID string    `json:"containerID"`
	Interface   string    `json:"interface"`
	Since       time.Time `json:"since"`
	// Reason is a short word for why, of those that Events of Pods have in brackets, and
	// Message says it to a person. Both are empty where it has them by now.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
