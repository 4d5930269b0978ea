package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddressPool is a set of subnets from which pods get addresses (Coil's design, "IP Address
// Management"). A pod uses the pool named "default" unless the pod or its namespace names another.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=apool,categories=berth
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",fieldPath=".metadata",message="metadata.name must be at most 63 lower-case letters, digits and hyphens: it is a label of the pool's blocks"
// +kubebuilder:printcolumn:name="Block size bits",type=integer,JSONPath=`.spec.blockSizeBits`
// +kubebuilder:printcolumn:name="Blocks",type=integer,JSONPath=`.status.blocks.total`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.blocks.allocated`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.blocks.free`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AddressPoolSpec   `json:"spec"`
	Status AddressPoolStatus `json:"status,omitzero"`
}

// AddressPoolList is a list of AddressPools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressPool `json:"items"`
}

// AddressPoolSpec defines the subnets of the pool and the size of its blocks. Written by a person.
//
// +kubebuilder:validation:XValidation:rule="!has(self.reserved) || self.reserved.all(r, !isCIDR(r) || self.subnets.exists(s, has(s.ipv4) && isCIDR(s.ipv4) && cidr(s.ipv4).containsCIDR(r) || has(s.ipv6) && isCIDR(s.ipv6) && cidr(s.ipv6).containsCIDR(r)))",fieldPath=".reserved",message="reserved ranges must be inside a subnet of the pool"
// +kubebuilder:validation:XValidation:rule="self.subnets.all(s, (!has(s.ipv4) || !isCIDR(s.ipv4) || cidr(s.ipv4).prefixLength() <= 32 - self.blockSizeBits) && (!has(s.ipv6) || !isCIDR(s.ipv6) || cidr(s.ipv6).prefixLength() <= 128 - self.blockSizeBits))",fieldPath=".subnets",message="subnets must each hold a block: ipv4 a /(32-blockSizeBits) or larger, ipv6 a /(128-blockSizeBits) or larger; with blockSizeBits 5, /27 and /123"
type AddressPoolSpec struct {
	// BlockSizeBits is the binary logarithm of the block size: each block has 2^blockSizeBits
	// addresses of each family. It cannot be changed.
	// +kubebuilder:default=5
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 16",message="blockSizeBits must be between 0 and 16"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="blockSizeBits cannot be changed: nodes have blocks of that size"
	// +optional
	BlockSizeBits *int32 `json:"blockSizeBits,omitempty"`

	// Subnets are the address ranges, in the order in which blocks are allocated from them. You can
	// append subnets. You cannot change or remove any, because that would renumber blocks that
	// nodes already have.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, has(s.ipv4) == has(self[0].ipv4) && has(s.ipv6) == has(self[0].ipv6))",message="subnets must all have the same families: ipv4, ipv6, or both"
	// +kubebuilder:validation:XValidation:rule="self.all(i, a, !has(a.ipv4) || !isCIDR(a.ipv4) || self.all(j, b, j <= i || !has(b.ipv4) || !isCIDR(b.ipv4) || !cidr(a.ipv4).containsCIDR(b.ipv4) && !cidr(b.ipv4).containsCIDR(a.ipv4)))",message="subnets must not overlap: the ipv4 ranges of two subnets do"
	// +kubebuilder:validation:XValidation:rule="self.all(i, a, !has(a.ipv6) || !isCIDR(a.ipv6) || self.all(j, b, j <= i || !has(b.ipv6) || !isCIDR(b.ipv6) || !cidr(a.ipv6).containsCIDR(b.ipv6) && !cidr(b.ipv6).containsCIDR(a.ipv6)))",message="subnets must not overlap: the ipv6 ranges of two subnets do"
	// +kubebuilder:validation:XValidation:rule="size(oldSelf) <= size(self) && oldSelf.all(i, s, s == self[i])",message="subnets can only be appended: changing or removing one would renumber blocks that nodes have"
	Subnets []PoolSubnet `json:"subnets"`

	// MaxBlocksPerNode is the maximum number of blocks of this pool on one node, including draining
	// blocks. If unset, there is no limit.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65536",message="maxBlocksPerNode must be between 1 and 65536"
	// +optional
	MaxBlocksPerNode *int32 `json:"maxBlocksPerNode,omitempty"`

	// Reserved are ranges of the subnets that no new pod gets, such as addresses of routers. In a pool with both
	// families, the counterpart of a reserved address at the same offset is not assigned either. A pod that has
	// a reserved address keeps it. You can add and remove ranges at any time.
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(r, isCIDR(r) && cidr(r).masked() == cidr(r))",message="reserved must be CIDRs without host bits, such as 10.2.0.0/28 or 10.2.0.1/32"
	// +optional
	Reserved []string `json:"reserved,omitempty"`

	// PodNamespaces are the namespaces whose pods may choose this pool with their own annotation
	// berth.dev/pool. The annotation of a namespace needs no entry here, because only people with
	// rights over namespaces can set it.
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",message="podNamespaces must be namespace names"
	// +optional
	PodNamespaces []string `json:"podNamespaces,omitempty"`
}

// PoolSubnet is a range of IPv4 addresses, a range of IPv6 addresses, or one of each with the same
// number of addresses. All subnets of a pool have the same families.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) || has(self.ipv6)",message="a subnet must have ipv4, ipv6 or both"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv4) || !isCIDR(self.ipv4) || !has(self.ipv6) || !isCIDR(self.ipv6) || cidr(self.ipv6).prefixLength() - cidr(self.ipv4).prefixLength() == 96",message="ipv4 and ipv6 must have the same number of addresses: with an ipv4 /24, ipv6 must be a /120"
type PoolSubnet struct {
	// IPv4 is a range in CIDR notation, such as 10.2.0.0/16.
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self)",message="ipv4 must be an IPv4 CIDR without host bits, such as 10.2.0.0/16"
	// +optional
	IPv4 string `json:"ipv4,omitempty"`

	// IPv6 is a range in CIDR notation, such as fd01:203:405:607::/112.
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6 && cidr(self).masked() == cidr(self)",message="ipv6 must be an IPv6 CIDR without host bits, such as fd01:203:405:607::/112"
	// +optional
	IPv6 string `json:"ipv6,omitempty"`
}

// AddressPoolStatus is the observed state of the pool. Written by the operator.
type AddressPoolStatus struct {
	// AcceptedSubnets is the number of subnets at the start of spec.subnets from which blocks are
	// allocated: those that overlap no accepted subnet of another pool.
	// +optional
	AcceptedSubnets int32 `json:"acceptedSubnets"`

	// NextIndex is the block index at which the next search for a free block starts.
	// +optional
	NextIndex int64 `json:"nextIndex"`

	// Blocks counts the blocks of the pool.
	// +optional
	Blocks PoolCounts `json:"blocks,omitzero"`

	// Addresses counts the addresses of one family. All addresses of a node's blocks count as
	// allocated.
	// +optional
	Addresses PoolCounts `json:"addresses,omitzero"`

	// Conditions are Ready, Exhausted and AddressesWithheld.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolCounts counts blocks or addresses.
type PoolCounts struct {
	// Total is the total number.
	Total int64 `json:"total"`
	// Allocated is the number assigned to nodes.
	Allocated int64 `json:"allocated"`
	// Free is the number assigned to no node.
	Free int64 `json:"free"`
}

// ConditionExhausted is True on an AddressPool that has no free block. Ready is False when the pool
// hands out no blocks for another reason.
const ConditionExhausted = "Exhausted"

// ConditionWithheld is True on an AddressPool while some addresses of its accepted subnets are
// withheld from pods because a node or the cluster's Services use them.
const ConditionWithheld = "AddressesWithheld"

const (
	// DefaultPool is the pool of pods that name no other, by themselves or by their namespace.
	DefaultPool = "default"
	// AnnotationPool names a pool. It is set on a namespace or, where the pool allows it, on a pod.
	AnnotationPool = "berth.dev/pool"
	// FinalizerPool keeps an AddressPool until all its blocks are deleted.
	FinalizerPool = "berth.dev/blocks"
	// DefaultBlockSizeBits is the default of blockSizeBits (Coil's design).
	DefaultBlockSizeBits = 5
)
