package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddressBlock is a block of addresses of an AddressPool, assigned to one node. Its name is
// POOL-INDEX, so the API server rejects a second owner of the same block. Written by the operator,
// at creation; afterwards only withheld and the status change.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ablock,categories=berth
// +kubebuilder:selectablefield:JSONPath=`.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.poolName`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.poolName + '-') && self.metadata.name.substring(size(self.poolName) + 1).matches('^(0|[1-9][0-9]{0,9})$') && int(self.metadata.name.substring(size(self.poolName) + 1)) == self.index",fieldPath=".metadata",message="metadata.name must be poolName-index, so that no two nodes get the same block"
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) || has(self.ipv6)",fieldPath=".ipv4",message="ipv4, ipv6 or both must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv4) || !isCIDR(self.ipv4) || !has(self.ipv6) || !isCIDR(self.ipv6) || cidr(self.ipv6).prefixLength() - cidr(self.ipv4).prefixLength() == 96",fieldPath=".ipv6",message="ipv4 and ipv6 must have the same number of addresses"
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) == has(oldSelf.ipv4) && (!has(self.ipv4) || self.ipv4 == oldSelf.ipv4)",fieldPath=".ipv4",message="ipv4 cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.ipv6) == has(oldSelf.ipv6) && (!has(self.ipv6) || self.ipv6 == oldSelf.ipv6)",fieldPath=".ipv6",message="ipv6 cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.requestUID) == has(oldSelf.requestUID) && (!has(self.requestUID) || self.requestUID == oldSelf.requestUID)",fieldPath=".requestUID",message="requestUID cannot be changed"
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.poolName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.nodeName`
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=`.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.ipv6`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// PoolName is the pool that the block was cut from.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="poolName cannot be changed"
	PoolName string `json:"poolName"`

	// NodeName is the node that the block is assigned to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName cannot be changed"
	NodeName string `json:"nodeName"`

	// Index is the position of the block in the pool, counted across all subnets.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 2147483647",message="index must be between 0 and 2147483647"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="index cannot be changed"
	Index int64 `json:"index"`

	// IPv4 is the range of IPv4 addresses in CIDR notation. All addresses are usable.
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self)",message="ipv4 must be an IPv4 CIDR without host bits, such as 10.2.2.0/27"
	// +optional
	IPv4 string `json:"ipv4,omitempty"`

	// IPv6 is the range of IPv6 addresses in CIDR notation. All addresses are usable.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6 && cidr(self).masked() == cidr(self)",message="ipv6 must be an IPv6 CIDR without host bits, such as fd01:203:405:607::200/123"
	// +optional
	IPv6 string `json:"ipv6,omitempty"`

	// RequestUID is the UID of the BlockRequest that the block was allocated for.
	// +optional
	RequestUID types.UID `json:"requestUID,omitempty"`

	// Withheld lists addresses of the block that belong to a node or to the cluster's Services, or that
	// the pool reserves. New
	// pods get neither these addresses nor their counterparts at the same offset in the other
	// family. Written by the operator.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Withheld []WithheldAddresses `json:"withheld,omitempty"`

	Status AddressBlockStatus `json:"status,omitzero"`
}

// WithheldAddresses is a range of addresses that no pod may use.
type WithheldAddresses struct {
	// CIDR is a range or a single address, such as 10.2.0.7/32.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).masked() == cidr(self)",message="cidr must be a CIDR without host bits, such as 10.2.0.7/32"
	CIDR string `json:"cidr"`

	// Owner is the object that uses the addresses, such as Node node-2.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	Owner string `json:"owner"`
}

// AddressBlockList is a list of AddressBlocks.
//
// +kubebuilder:object:root=true
type AddressBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressBlock `json:"items"`
}

// AddressBlockStatus is the node's claim on the block. Written by the daemon.
type AddressBlockStatus struct {
	// RenewTime is when the daemon last renewed its claim on the block. The daemon renews only
	// while its Node object is missing. The operator releases the block when renewals stop.
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
}

// WithheldByPool precedes the name of the pool in the owner of withheld addresses that the pool reserves.
const WithheldByPool = "AddressPool "

// MaxWithheld is the maximum number of entries in withheld.
const MaxWithheld = 64

const (
	// LabelPool is the label of an AddressBlock that holds the name of its pool.
	LabelPool = "berth.dev/pool"
	// LabelNode is the label of an AddressBlock that holds the NodeLabel of its node.
	LabelNode = "berth.dev/node"
	// FinalizerBlock keeps an AddressBlock until none of its addresses is in use or cooling down.
	FinalizerBlock = "berth.dev/addresses"
)

// maxLabel is the longest label value (Kubernetes documentation, "Labels and
// Selectors").
const maxLabel = 63

// NodeLabel returns the value of LabelNode for a node: its name or, if the name is too long for a
// label, a prefix of it followed by a hash.
func NodeLabel(node string) string {
	if len(node) <= maxLabel {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	hash := "-" + hex.EncodeToString(sum[:8])
	return node[:maxLabel-len(hash)] + hash
}
