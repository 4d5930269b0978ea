package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddressBlock is a piece of an AddressPool that one node has. Its name is
// POOL-INDEX, so that the API server refuses a second owner. Everything but its
// status is fixed when the operator makes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ablock,categories=berth
// +kubebuilder:selectablefield:JSONPath=`.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.poolName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.nodeName`
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=`.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.ipv6`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// PoolName is the pool that the block was cut from.
	// +kubebuilder:validation:MaxLength=63
	PoolName string `json:"poolName"`

	// NodeName is the node that has the block.
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// Index is the block's place in the pool, counted over all its subnets.
	// +kubebuilder:validation:Minimum=0
	Index int64 `json:"index"`

	// IPv4 are the block's IPv4 addresses, as a CIDR. All are usable.
	// +kubebuilder:validation:MaxLength=18
	// +optional
	IPv4 string `json:"ipv4,omitempty"`

	// IPv6 are the block's IPv6 addresses, as a CIDR. All are usable.
	// +kubebuilder:validation:MaxLength=49
	// +optional
	IPv6 string `json:"ipv6,omitempty"`

	// RequestUID is the BlockRequest that the block was cut for.
	// +optional
	RequestUID types.UID `json:"requestUID,omitempty"`

	Status AddressBlockStatus `json:"status,omitzero"`
}

// AddressBlockList is a list of AddressBlocks.
//
// +kubebuilder:object:root=true
type AddressBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressBlock `json:"items"`
}

// AddressBlockStatus is the node's hold on the block. Written by the daemon.
type AddressBlockStatus struct {
	// RenewTime is when the daemon last said that it lives and has the block. It
	// does so only while its Node object is missing, and the block is released
	// when it stops.
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
}

const (
	// LabelPool is the pool of an AddressBlock.
	LabelPool = "berth.dev/pool"
	// LabelNode is NodeLabel of the node of an AddressBlock.
	LabelNode = "berth.dev/node"
	// FinalizerBlock keeps an AddressBlock until none of its addresses is used
	// or cools.
	FinalizerBlock = "berth.dev/addresses"
)

// maxLabel is the longest label value (Kubernetes documentation, "Labels and
// Selectors").
const maxLabel = 63

// NodeLabel is the value of LabelNode for a node: its name, or if that is
// longer than a label may be, as much of it as fits before a hash of it.
func NodeLabel(node string) string {
	if len(node) <= maxLabel {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	hash := "-" + hex.EncodeToString(sum[:8])
	return node[:maxLabel-len(hash)] + hash
}
