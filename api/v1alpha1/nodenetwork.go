package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeNetwork is the network of one node, by whose name it goes: what its
// addresses should be like, which it may use, and which it does.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nn,categories=berth
// +kubebuilder:printcolumn:name="Instance",type=string,JSONPath=`.spec.instanceID`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.instanceType`
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.spec.eni.availabilityZone`,priority=1
// +kubebuilder:printcolumn:name="ENIs",type=integer,JSONPath=`.status.eni.count`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.eni.available`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.ipam.usedCount`
// +kubebuilder:printcolumn:name="Needed",type=integer,JSONPath=`.status.eni.needed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.status.eni.template`,priority=1
// +kubebuilder:printcolumn:name="Outdated",type=integer,JSONPath=`.status.eni.outdated`,priority=1
// +kubebuilder:printcolumn:name="Trunk",type=string,JSONPath=`.status.eni.trunk.id`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkSpec   `json:"spec"`
	Status NodeNetworkStatus `json:"status,omitzero"`
}

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetwork `json:"items"`
}

// NodeNetworkSpec says which instance the node is and what it should have.
type NodeNetworkSpec struct {
	// InstanceID is the EC2 instance that the node runs on, such as
	// i-0123456789abcdef0. The daemon sets it when it creates the object.
	// +kubebuilder:validation:XValidation:rule="self.matches('^i-[0-9a-f]{1,17}$')",message="instanceID must be an EC2 instance ID such as i-0123456789abcdef0"
	InstanceID string `json:"instanceID"`

	// InstanceType is the instance's type, such as m5.large. The daemon sets it
	// when it creates the object. How many ENIs and addresses there may be is as
	// EC2 says, whatever stands here.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9-]+[.][a-z0-9-]+$')",message="instanceType must be an EC2 instance type such as m5.large"
	// +kubebuilder:validation:MaxLength=64
	InstanceType string `json:"instanceType"`

	// ENI says how ENIs and addresses are allocated. The daemon fills it from
	// its configuration when it creates the object; afterwards it is a person's. What
	// a NodeNetworkTemplate that selects the node sets, counts in its place.
	// +kubebuilder:default={}
	// +optional
	ENI ENISpec `json:"eni,omitzero"`

	// IPAM is what the node may use. Written by the operator.
	// +optional
	IPAM IPAMSpec `json:"ipam,omitzero"`
}

// ENISpec are Cilium's "ENI Allocation Parameters", and
// the warm targets of the Amazon VPC CNI as the other way to say how many
// addresses are kept.
//
// +kubebuilder:validation:XValidation:rule="!((has(self.warmENITarget) || has(self.warmIPTarget) || has(self.minimumIPTarget) || has(self.warmPrefixTarget)) && (has(self.minAllocate) || has(self.preAllocate) || has(self.maxAboveWatermark) || has(self.maxAllocate)))",message="eni.warmENITarget, warmIPTarget, minimumIPTarget and warmPrefixTarget cannot be mixed with minAllocate, preAllocate, maxAboveWatermark and maxAllocate: use one dialect"
// +kubebuilder:validation:XValidation:rule="!has(self.maxAllocate) || self.maxAllocate == 0 || !has(self.minAllocate) || self.minAllocate <= self.maxAllocate",message="eni.minAllocate must be at most eni.maxAllocate"
// +kubebuilder:validation:XValidation:rule="!(has(self.subnetIDs) && size(self.subnetIDs) > 0 && has(self.subnetTags) && size(self.subnetTags) > 0)",message="eni.subnetIDs and eni.subnetTags exclude each other"
// +kubebuilder:validation:XValidation:rule="!(has(self.securityGroups) && size(self.securityGroups) > 0 && has(self.securityGroupTags) && size(self.securityGroupTags) > 0)",message="eni.securityGroups and eni.securityGroupTags exclude each other"
type ENISpec struct {
	// VPCID is the VPC in which subnets are looked for.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^vpc-[0-9a-f]{1,17}$')",message="eni.vpcID must be a VPC ID such as vpc-0123456789abcdef0"
	// +optional
	VPCID string `json:"vpcID,omitempty"`

	// AvailabilityZone is the zone in which subnets are looked for.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// IPFamilies are those of which each pod gets an address: ipv4, ipv6, or dual,
	// one of each, both of the same ENI. Not set: ipv4. Change it on a node that runs
	// no pods: a pod keeps the addresses that it got.
	// +kubebuilder:validation:Enum=ipv4;ipv6;dual
	// +optional
	IPFamilies string `json:"ipFamilies,omitempty"`

	// MinAllocate is how many addresses the node has at least.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.minAllocate must be between 0 and 65536"
	// +optional
	MinAllocate *int32 `json:"minAllocate,omitempty"`

	// PreAllocate is how many addresses are available at all times beyond those
	// in use. 8 when not set, and no warm target is.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.preAllocate must be between 0 and 65536"
	// +optional
	PreAllocate *int32 `json:"preAllocate,omitempty"`

	// MaxAboveWatermark is how many addresses beyond the needed ones one
	// request may ask for, to save calls. 0 when not set.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.maxAboveWatermark must be between 0 and 65536"
	// +optional
	MaxAboveWatermark *int32 `json:"maxAboveWatermark,omitempty"`

	// MaxAllocate is how many addresses the node has at most; 0 or not set: no cap.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.maxAllocate must be between 0 and 65536"
	// +optional
	MaxAllocate *int32 `json:"maxAllocate,omitempty"`

	// WarmENITarget is the Amazon VPC CNI's WARM_ENI_TARGET.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 64",message="eni.warmENITarget must be between 0 and 64"
	// +optional
	WarmENITarget *int32 `json:"warmENITarget,omitempty"`

	// WarmIPTarget is the Amazon VPC CNI's WARM_IP_TARGET.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.warmIPTarget must be between 0 and 65536"
	// +optional
	WarmIPTarget *int32 `json:"warmIPTarget,omitempty"`

	// MinimumIPTarget is the Amazon VPC CNI's MINIMUM_IP_TARGET.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.minimumIPTarget must be between 0 and 65536"
	// +optional
	MinimumIPTarget *int32 `json:"minimumIPTarget,omitempty"`

	// WarmPrefixTarget is the Amazon VPC CNI's WARM_PREFIX_TARGET.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.warmPrefixTarget must be between 0 and 65536"
	// +optional
	WarmPrefixTarget *int32 `json:"warmPrefixTarget,omitempty"`

	// MaxENIs caps the node's ENIs, the primary one included; 0 or not set:
	// what the instance type allows.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 64",message="eni.maxENIs must be between 0 and 64"
	// +optional
	MaxENIs *int32 `json:"maxENIs,omitempty"`

	// MaxPods is the most pods with an address of their own; growth stops
	// there. 0 or not set: no cap.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.maxPods must be between 0 and 65536"
	// +optional
	MaxPods *int32 `json:"maxPods,omitempty"`

	// FirstInterfaceIndex is the lowest device index whose ENI serves pods: ENIs
	// with this index or above are used. 1, as when it is not set, leaves eth0 to the node.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 15",message="eni.firstInterfaceIndex must be between 0 and 15"
	// +optional
	FirstInterfaceIndex *int32 `json:"firstInterfaceIndex,omitempty"`

	// SubnetIDs are the subnets of new ENIs. Not set: by subnetTags.
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^subnet-[0-9a-f]{1,17}$'))",message="eni.subnetIDs must be subnet IDs such as subnet-0123456789abcdef0"
	// +optional
	SubnetIDs []string `json:"subnetIDs,omitempty"`

	// SubnetTags select the subnets of new ENIs, besides VPC and zone. Not set:
	// no tags are required.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=50
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="eni.subnetTags must have keys of at most 128 characters and values of at most 256"
	// +optional
	SubnetTags map[string]string `json:"subnetTags,omitempty"`

	// SecurityGroups are those of new ENIs. Not set: by securityGroupTags, or
	// those of eth0.
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^sg-[0-9a-f]{1,17}$'))",message="eni.securityGroups must be security group IDs such as sg-0123456789abcdef0"
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// SecurityGroupTags select the security groups of new ENIs in the VPC.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=50
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="eni.securityGroupTags must have keys of at most 128 characters and values of at most 256"
	// +optional
	SecurityGroupTags map[string]string `json:"securityGroupTags,omitempty"`

	// DeleteOnTermination removes ENIs with the instance, as when it is not set.
	// +optional
	DeleteOnTermination *bool `json:"deleteOnTermination,omitempty"`

	// UsePrimaryAddress gives pods also the primary address of each ENI that
	// serves pods, eth0's excepted.
	// +optional
	UsePrimaryAddress *bool `json:"usePrimaryAddress,omitempty"`

	// PrefixDelegation takes /28 prefixes instead of single IPv4 addresses, on
	// instance types that have them. IPv6 addresses come as a /80 there in any case.
	// +optional
	PrefixDelegation *bool `json:"prefixDelegation,omitempty"`

	// Trunk keeps a trunk ENI on the instance, on whose link pods' branch interfaces
	// are VLANs (VPC, provider ec2), if its type may have branches. It takes the place
	// of one ENI with addresses for pods. Of no effect in node mode, where nobody makes
	// branches.
	// +optional
	Trunk *bool `json:"trunk,omitempty"`
}

// WantsTrunk tells whether the instance is to have a trunk ENI.
func (e *ENISpec) WantsTrunk() bool { return e.Trunk != nil && *e.Trunk }

// EffectiveENI is what counts of an object: spec.eni, or that with what a template sets.
func (o *NodeNetwork) EffectiveENI() *ENISpec {
	if o.Status.ENI.Settings != nil {
		return o.Status.ENI.Settings
	}
	return &o.Spec.ENI
}

// Prefixes tells whether IPv4 addresses are taken as prefixes.
func (e *ENISpec) Prefixes() bool { return e.PrefixDelegation != nil && *e.PrefixDelegation }

// PrimaryAddresses tells whether ENIs' primary addresses are for pods.
func (e *ENISpec) PrimaryAddresses() bool { return e.UsePrimaryAddress != nil && *e.UsePrimaryAddress }

// IPAMSpec is what the node may use. Written by the operator alone.
type IPAMSpec struct {
	// Available are the addresses of both families, and IPv4 /28 and IPv6 /80
	// prefixes as such, that the node may give to pods, with the ENI that each is on.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=4096
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip.isCanonical(a) || isCIDR(a) && cidr(a).prefixLength() == (cidr(a).ip().family() == 4 ? 28 : 80) && string(cidr(a).masked()) == a)",message="ipam.available must have addresses such as 10.0.0.1 or 2001:db8::1, or prefixes such as 10.0.0.16/28 or 2001:db8:0:1::/80, in their shortest form, as its keys"
	// +optional
	Available map[string]AvailableAddress `json:"available,omitempty"`

	// Releasing are those among available that the operator would take back.
	// The daemon gives none of them to a pod any more and confirms each that
	// no pod has in status.ipam.released; only then is it unassigned. One that
	// leaves this list while it is available stays after all.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a))",message="ipam.releasing must be addresses or prefixes of ipam.available"
	// +optional
	Releasing []string `json:"releasing,omitempty"`

	// Unassigning are those among releasing that the operator is about to have
	// unassigned, or has asked EC2 to: they are no longer available to any pod,
	// whatever else changes, until EC2 took them. An ENI's ID stands for an ENI
	// that is about to be detached, with all that it held.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a) || a.startsWith('eni-'))",message="ipam.unassigning must be addresses or prefixes of ipam.available, or IDs of ENIs"
	// +optional
	Unassigning []string `json:"unassigning,omitempty"`
}

// AvailableAddress says where an address is.
type AvailableAddress struct {
	// Resource is the ID of the ENI.
	Resource string `json:"resource"`
}

// NodeNetworkStatus is how the node does.
type NodeNetworkStatus struct {
	// IPAM is what the node uses. Written by the daemon.
	// +optional
	IPAM IPAMStatus `json:"ipam,omitzero"`

	// ENI is what the instance has. Written by the operator.
	// +optional
	ENI ENIStatus `json:"eni,omitzero"`

	// Conditions are Ready, InDeficit, AtCapacity and Degraded. Written by the
	// operator.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPAMStatus is what the node uses. Written by the daemon alone.
type IPAMStatus struct {
	// Used are the addresses of pods, and those that cool; of a pod with one of each
	// family, both.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=4096
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip.isCanonical(a))",message="ipam.used must have addresses such as 10.0.0.1 or 2001:db8::1, in their shortest form, as its keys"
	// +kubebuilder:validation:XValidation:rule="self.map(a, has(self[a].owner) ? size(self[a].owner) : 0).sum() <= 400000",message="ipam.used must have owners of at most 400000 characters together"
	// +optional
	Used map[string]UsedAddress `json:"used,omitempty"`

	// UsedCount is how many pods those addresses are of, and cool after: of each ENI,
	// the number of the family that more of it are of. So it compares with
	// status.eni.available; where pods have one address it is the number of addresses.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 4096",message="ipam.usedCount must be between 0 and 4096"
	// +optional
	UsedCount int32 `json:"usedCount"`

	// Released are those of spec.ipam.releasing that the daemon has withdrawn:
	// no pod has them or will get them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a))",message="ipam.released must be addresses or prefixes of ipam.releasing"
	// +optional
	Released []string `json:"released,omitempty"`

	// Waiting is how many pods wait for an address now.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 4096",message="ipam.waiting must be between 0 and 4096"
	// +optional
	Waiting int32 `json:"waiting,omitempty"`

	// MissingLinks are the IDs of ENIs whose links the node lacks: of those among
	// status.eni.enis, and of those that pods use although they are not. The operator
	// asks EC2 for each that comes or goes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[!-~]*$`
	// +optional
	MissingLinks []string `json:"missingLinks,omitempty"`

	// InstanceID is the instance that this report is of.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
}

// UsedAddress says who has an address.
//
// Its texts are of one byte a character, so that what bounds their lengths bounds
// the size of the object.
type UsedAddress struct {
	// Owner is the pod, as namespace/name. Empty for an address that cools.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	Owner string `json:"owner,omitempty"`

	// UID is the pod's UID, where the runtime told it.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	UID string `json:"uid,omitempty"`

	// Resource is the ID of the ENI.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	Resource string `json:"resource,omitempty"`

	// Cooling is set for an address that a pod had less than the cooling period
	// ago.
	// +optional
	Cooling bool `json:"cooling,omitempty"`
}

// ENIStatus is what the instance has. Written by the operator alone.
type ENIStatus struct {
	// ENIs are the instance's ENIs that Berth may use, by ID.
	// +mapType=atomic
	// +optional
	ENIs map[string]ENI `json:"enis,omitempty"`

	// Count is the number of those that serve pods.
	// +optional
	Count int32 `json:"count"`

	// Available is for how many pods the addresses of spec.ipam.available are enough,
	// used ones included: of each ENI, the number of the family that fewer are of
	// among those of which pods get an address. A /28 counts as 16, a /80, which is
	// more than a node ever needs, as 65536.
	// +optional
	Available int32 `json:"available"`

	// Needed is for how many pods more the node should have addresses.
	// +optional
	Needed int32 `json:"needed"`

	// Limits are the instance type's, as far as they are known.
	// +optional
	Limits *ENILimits `json:"limits,omitempty"`

	// Template is the NodeNetworkTemplate that selects the node, as KIND/NAME. Empty:
	// none.
	// +optional
	Template string `json:"template,omitempty"`

	// Settings are what counts in place of spec.eni: that with what the template sets.
	// Not set: spec.eni counts as it is.
	// +optional
	Settings *ENISpec `json:"settings,omitempty"`

	// Outdated is how many ENIs that serve pods are in other subnets, or have other
	// security groups, than new ones would, as far as that is known: surely where a
	// template has them drained.
	// +optional
	Outdated int32 `json:"outdated,omitempty"`

	// Trunk is how it stands with the trunk ENI. Not set: none is wanted, and there is
	// none.
	// +optional
	Trunk *TrunkENI `json:"trunk,omitempty"`
}

// TrunkENI is a trunk ENI, or why there is none. It is not among the enis: pods get no
// addresses of it.
type TrunkENI struct {
	// ID is the ENI's. Empty: none is attached.
	// +optional
	ID string `json:"id,omitempty"`
	// MAC is the hardware address by which the node finds the link.
	// +optional
	MAC string `json:"mac,omitempty"`
	// DeviceIndex is where the ENI is attached.
	// +optional
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// Reason is why it is not there although it is wanted (Pending, NoBranches,
	// OtherTrunk, NoRoom, TrunkSubnetFull, Refused), or there although it is not (HasBranches).
	// Empty: all is as wanted.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says the same in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// ENILimits are what an instance type allows.
type ENILimits struct {
	// ENIs is the most ENIs, the primary one included.
	ENIs int32 `json:"enis"`
	// AddressesPerENI is the most IPv4 addresses of one, its primary included;
	// a prefix takes the place of one.
	AddressesPerENI int32 `json:"addressesPerENI"`
	// Prefixes tells whether prefixes can be delegated.
	// +optional
	Prefixes bool `json:"prefixes,omitempty"`
	// IPv6AddressesPerENI is the most IPv6 addresses of one; a prefix takes the place
	// of one. 0: the instance type has no IPv6.
	// +optional
	IPv6AddressesPerENI int32 `json:"ipv6AddressesPerENI,omitempty"`
}

// ENI is one elastic network interface.
type ENI struct {
	// MAC is the hardware address by which the node finds the link.
	MAC string `json:"mac"`
	// DeviceIndex is where the ENI is attached; 0 is eth0.
	DeviceIndex int32 `json:"deviceIndex"`
	// PrimaryIPv4 is the ENI's own address of IPv4. In a subnet of IPv6 alone it has none, and
	// SubnetCIDR is empty, too.
	// +optional
	PrimaryIPv4 string `json:"primaryIPv4,omitempty"`
	// SubnetID is the ENI's subnet.
	SubnetID string `json:"subnetID"`
	// SubnetCIDR is the subnet's IPv4 block.
	// +optional
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// SubnetIPv6CIDRs are the subnet's IPv6 blocks.
	// +listType=atomic
	// +optional
	SubnetIPv6CIDRs []string `json:"subnetIPv6CIDRs,omitempty"`
	// SecurityGroups are those of the ENI.
	// +listType=atomic
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// The types of a NodeNetwork's conditions. Ready is True when the node has
// addresses to give and nothing keeps it from growing. Degraded is True while
// a cloud error keeps the operator from what it wants; its reason is the class
// of the error and its message says when it tries again.
const (
	ConditionReady      = "Ready"
	ConditionInDeficit  = "InDeficit"
	ConditionAtCapacity = "AtCapacity"
	ConditionDegraded   = "Degraded"
)

// ReasonLinkMissing is the reason of Degraded while nothing is wrong but that the node has
// no link of an ENI (status.ipam.missingLinks).
const ReasonLinkMissing = "LinkMissing"
