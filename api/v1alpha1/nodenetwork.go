package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeNetwork is the network configuration and state of the node of the same name: its settings for
// ENIs, the addresses that it may use, and the addresses that it uses.
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

// NodeNetworkSpec identifies the instance of the node and configures its ENIs and addresses.
type NodeNetworkSpec struct {
	// InstanceID is the EC2 instance that the node runs on, such as i-0123456789abcdef0. The daemon
	// sets it when it creates the object.
	// +kubebuilder:validation:XValidation:rule="self.matches('^i-[0-9a-f]{1,17}$')",message="instanceID must be an EC2 instance ID such as i-0123456789abcdef0"
	InstanceID string `json:"instanceID"`

	// InstanceType is the type of the instance, such as m5.large. The daemon sets it when it
	// creates the object. It is informational: limits on ENIs and addresses come from EC2.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9-]+[.][a-z0-9-]+$')",message="instanceType must be an EC2 instance type such as m5.large"
	// +kubebuilder:validation:MaxLength=64
	InstanceType string `json:"instanceType"`

	// ENI configures the allocation of ENIs and addresses. The daemon fills it from its
	// configuration when it creates the object; afterwards it belongs to people. Settings of a
	// NodeNetworkTemplate that selects the node take precedence.
	// +kubebuilder:default={}
	// +optional
	ENI ENISpec `json:"eni,omitzero"`

	// IPAM lists the addresses that the node may use. Written by the operator.
	// +optional
	IPAM IPAMSpec `json:"ipam,omitzero"`
}

// ENISpec has the fields of Cilium's "ENI Allocation Parameters", and the warm targets of the
// Amazon VPC CNI as an alternative way to set how many spare addresses a node keeps.
//
// +kubebuilder:validation:XValidation:rule="!((has(self.warmENITarget) || has(self.warmIPTarget) || has(self.minimumIPTarget) || has(self.warmPrefixTarget)) && (has(self.minAllocate) || has(self.preAllocate) || has(self.maxAboveWatermark) || has(self.maxAllocate)))",message="eni.warmENITarget, warmIPTarget, minimumIPTarget and warmPrefixTarget cannot be mixed with minAllocate, preAllocate, maxAboveWatermark and maxAllocate: use one dialect"
// +kubebuilder:validation:XValidation:rule="!has(self.maxAllocate) || self.maxAllocate == 0 || !has(self.minAllocate) || self.minAllocate <= self.maxAllocate",message="eni.minAllocate must be at most eni.maxAllocate"
// +kubebuilder:validation:XValidation:rule="!(has(self.subnetIDs) && size(self.subnetIDs) > 0 && has(self.subnetTags) && size(self.subnetTags) > 0)",message="eni.subnetIDs and eni.subnetTags are mutually exclusive"
// +kubebuilder:validation:XValidation:rule="!(has(self.securityGroups) && size(self.securityGroups) > 0 && has(self.securityGroupTags) && size(self.securityGroupTags) > 0)",message="eni.securityGroups and eni.securityGroupTags are mutually exclusive"
type ENISpec struct {
	// VPCID is the VPC in which subnets are looked up.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^vpc-[0-9a-f]{1,17}$')",message="eni.vpcID must be a VPC ID such as vpc-0123456789abcdef0"
	// +optional
	VPCID string `json:"vpcID,omitempty"`

	// AvailabilityZone is the zone in which subnets are looked up.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// IPFamilies are the families of each pod's addresses: ipv4, ipv6, or dual for one address of
	// each family on the same ENI. If unset, ipv4. Change it only on a node without pods, because
	// running pods keep their addresses.
	// +kubebuilder:validation:Enum=ipv4;ipv6;dual
	// +optional
	IPFamilies string `json:"ipFamilies,omitempty"`

	// MinAllocate is the minimum number of addresses on the node.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.minAllocate must be between 0 and 65536"
	// +optional
	MinAllocate *int32 `json:"minAllocate,omitempty"`

	// PreAllocate is the number of addresses kept available in addition to those in use. Defaults
	// to 8 unless a warm target is set.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.preAllocate must be between 0 and 65536"
	// +optional
	PreAllocate *int32 `json:"preAllocate,omitempty"`

	// MaxAboveWatermark is how many addresses beyond the required number one request may allocate,
	// to save API calls. Defaults to 0.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.maxAboveWatermark must be between 0 and 65536"
	// +optional
	MaxAboveWatermark *int32 `json:"maxAboveWatermark,omitempty"`

	// MaxAllocate is the maximum number of addresses on the node. 0 or unset means no limit.
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

	// MaxENIs is the maximum number of ENIs on the node, including the primary ENI. 0 or unset
	// means the limit of the instance type.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 64",message="eni.maxENIs must be between 0 and 64"
	// +optional
	MaxENIs *int32 `json:"maxENIs,omitempty"`

	// MaxPods is the maximum number of pods with their own address; no further addresses are
	// allocated beyond it. 0 or unset means no limit.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="eni.maxPods must be between 0 and 65536"
	// +optional
	MaxPods *int32 `json:"maxPods,omitempty"`

	// FirstInterfaceIndex is the lowest device index of the ENIs that serve pods. Defaults to 1,
	// which reserves eth0 for the node.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 15",message="eni.firstInterfaceIndex must be between 0 and 15"
	// +optional
	FirstInterfaceIndex *int32 `json:"firstInterfaceIndex,omitempty"`

	// SubnetIDs are the subnets for new ENIs. If unset, subnetTags selects them.
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^subnet-[0-9a-f]{1,17}$'))",message="eni.subnetIDs must be subnet IDs such as subnet-0123456789abcdef0"
	// +optional
	SubnetIDs []string `json:"subnetIDs,omitempty"`

	// SubnetTags select the subnets for new ENIs within the VPC and the zone. If unset, no tags are
	// required.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=50
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="eni.subnetTags must have keys of at most 128 characters and values of at most 256"
	// +optional
	SubnetTags map[string]string `json:"subnetTags,omitempty"`

	// SecurityGroups are the security groups of new ENIs. If unset, securityGroupTags selects them;
	// if that is unset too, new ENIs get the groups of eth0.
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^sg-[0-9a-f]{1,17}$'))",message="eni.securityGroups must be security group IDs such as sg-0123456789abcdef0"
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// SecurityGroupTags select the security groups of new ENIs within the VPC.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=50
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="eni.securityGroupTags must have keys of at most 128 characters and values of at most 256"
	// +optional
	SecurityGroupTags map[string]string `json:"securityGroupTags,omitempty"`

	// DeleteOnTermination deletes ENIs together with the instance. Defaults to true.
	// +optional
	DeleteOnTermination *bool `json:"deleteOnTermination,omitempty"`

	// UsePrimaryAddress also gives pods the primary address of each ENI that serves pods, except
	// eth0.
	// +optional
	UsePrimaryAddress *bool `json:"usePrimaryAddress,omitempty"`

	// PrefixDelegation allocates /28 prefixes instead of single IPv4 addresses, on instance types
	// that support it. IPv6 addresses are always allocated as /80 prefixes on these types.
	// +optional
	PrefixDelegation *bool `json:"prefixDelegation,omitempty"`

	// Trunk keeps a trunk ENI attached to the instance, if its type supports branch interfaces. The
	// pods' branch interfaces are VLANs on its link (VPC, provider ec2). The trunk ENI takes the
	// place of one ENI with addresses for pods. It has no effect in node mode, where nothing
	// creates branch interfaces.
	// +optional
	Trunk *bool `json:"trunk,omitempty"`
}

// WantsTrunk reports whether the instance should have a trunk ENI.
func (e *ENISpec) WantsTrunk() bool { return e.Trunk != nil && *e.Trunk }

// EffectiveENI returns the settings in effect: status.eni.settings if a template applies, otherwise
// spec.eni.
func (o *NodeNetwork) EffectiveENI() *ENISpec {
	if o.Status.ENI.Settings != nil {
		return o.Status.ENI.Settings
	}
	return &o.Spec.ENI
}

// Prefixes reports whether IPv4 addresses are allocated as prefixes.
func (e *ENISpec) Prefixes() bool { return e.PrefixDelegation != nil && *e.PrefixDelegation }

// PrimaryAddresses reports whether pods may use the primary addresses of ENIs.
func (e *ENISpec) PrimaryAddresses() bool { return e.UsePrimaryAddress != nil && *e.UsePrimaryAddress }

// IPAMSpec lists the addresses that the node may use. Written by the operator alone.
type IPAMSpec struct {
	// Available maps the addresses that the node may give to pods to their ENIs. It has addresses
	// of both families; IPv4 /28 and IPv6 /80 prefixes are single entries.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=4096
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip.isCanonical(a) || isCIDR(a) && cidr(a).prefixLength() == (cidr(a).ip().family() == 4 ? 28 : 80) && string(cidr(a).masked()) == a)",message="ipam.available must have addresses such as 10.0.0.1 or 2001:db8::1, or prefixes such as 10.0.0.16/28 or 2001:db8:0:1::/80, in their shortest form, as its keys"
	// +optional
	Available map[string]AvailableAddress `json:"available,omitempty"`

	// Releasing are the entries of available that the operator wants to release. The daemon stops
	// assigning them to pods and confirms each unused one in status.ipam.released; only then is it
	// unassigned. An entry that is removed from this list while it is still available is kept.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a))",message="ipam.releasing must be addresses or prefixes of ipam.available"
	// +optional
	Releasing []string `json:"releasing,omitempty"`

	// Unassigning are the entries of releasing that the operator is about to unassign, or has asked
	// EC2 to unassign. No pod may get them until EC2 has unassigned them, whatever else changes.
	// The ID of an ENI stands for an ENI that is about to be detached with all its addresses.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a) || a.startsWith('eni-'))",message="ipam.unassigning must be addresses or prefixes of ipam.available, or IDs of ENIs"
	// +optional
	Unassigning []string `json:"unassigning,omitempty"`
}

// AvailableAddress is the location of an address.
type AvailableAddress struct {
	// Resource is the ID of the ENI.
	Resource string `json:"resource"`
}

// NodeNetworkStatus is the observed state of the node's network.
type NodeNetworkStatus struct {
	// IPAM is the node's report on the addresses in use. Written by the daemon.
	// +optional
	IPAM IPAMStatus `json:"ipam,omitzero"`

	// ENI is the state of the instance in EC2. Written by the operator.
	// +optional
	ENI ENIStatus `json:"eni,omitzero"`

	// Conditions are Ready, InDeficit, AtCapacity, Degraded and, if the chart installed the operator,
	// SettingsAsInstalled. Written by the operator.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPAMStatus is the node's report on the addresses in use. Written by the daemon alone.
type IPAMStatus struct {
	// Used are the addresses of pods and the addresses that are cooling down. A dual-stack pod has
	// two entries.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=4096
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip.isCanonical(a))",message="ipam.used must have addresses such as 10.0.0.1 or 2001:db8::1, in their shortest form, as its keys"
	// +kubebuilder:validation:XValidation:rule="self.map(a, has(self[a].owner) ? size(self[a].owner) : 0).sum() <= 400000",message="ipam.used must have owners of at most 400000 characters together"
	// +optional
	Used map[string]UsedAddress `json:"used,omitempty"`

	// UsedCount is the number of pods that use these addresses, including addresses that are
	// cooling down. On each ENI the family with more used addresses counts, so that the number is
	// comparable with status.eni.available. On single-stack nodes it is the number of used
	// addresses.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 4096",message="ipam.usedCount must be between 0 and 4096"
	// +optional
	UsedCount int32 `json:"usedCount"`

	// Released are the entries of spec.ipam.releasing that the daemon has withdrawn: no pod uses
	// them or will get them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || isCIDR(a))",message="ipam.released must be addresses or prefixes of ipam.releasing"
	// +optional
	Released []string `json:"released,omitempty"`

	// Waiting is the number of pods that are waiting for an address.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 4096",message="ipam.waiting must be between 0 and 4096"
	// +optional
	Waiting int32 `json:"waiting,omitempty"`

	// MissingLinks are the IDs of ENIs whose links are missing on the node: ENIs in
	// status.eni.enis, and other ENIs that pods still use. The operator checks EC2 for each ID that
	// appears or disappears.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[!-~]*$`
	// +optional
	MissingLinks []string `json:"missingLinks,omitempty"`

	// InstanceID is the instance that this report is about.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
}

// UsedAddress is the user of an address.
//
// Its strings are ASCII, so that the limits on their lengths bound the size of the object.
type UsedAddress struct {
	// Owner is the pod, as namespace/name. Empty for an address that is cooling down.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	Owner string `json:"owner,omitempty"`

	// UID is the UID of the pod, if the runtime passed it.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	UID string `json:"uid,omitempty"`

	// Resource is the ID of the ENI.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	Resource string `json:"resource,omitempty"`

	// Cooling marks an address that a pod released less than the cooling period ago.
	// +optional
	Cooling bool `json:"cooling,omitempty"`
}

// ENIStatus is the state of the instance in EC2. Written by the operator alone.
type ENIStatus struct {
	// ENIs are the instance's ENIs that Berth may use, by ID.
	// +mapType=atomic
	// +optional
	ENIs map[string]ENI `json:"enis,omitempty"`

	// Count is the number of ENIs that serve pods.
	// +optional
	Count int32 `json:"count"`

	// Available is the number of pods for which the addresses in spec.ipam.available suffice,
	// including used addresses. On each ENI the family with fewer addresses counts, among the
	// families that pods use. A /28 prefix counts as 16 addresses. A /80 prefix counts as 65536,
	// which is more than a node ever needs.
	// +optional
	Available int32 `json:"available"`

	// Needed is the number of additional pods for which the node should have addresses.
	// +optional
	Needed int32 `json:"needed"`

	// Limits are the limits of the instance type, as far as they are known.
	// +optional
	Limits *ENILimits `json:"limits,omitempty"`

	// Template is the NodeNetworkTemplate that selects the node, as KIND/NAME. Empty if there is
	// none.
	// +optional
	Template string `json:"template,omitempty"`

	// Settings are the settings in effect: spec.eni with the changes of the template. If unset,
	// spec.eni applies unchanged.
	// +optional
	Settings *ENISpec `json:"settings,omitempty"`

	// Outdated is the number of ENIs serving pods whose subnet or security groups differ from those
	// of new ENIs. It is complete only where a template drains such ENIs; elsewhere it counts those
	// that are known.
	// +optional
	Outdated int32 `json:"outdated,omitempty"`

	// Trunk is the state of the trunk ENI. If unset, none is wanted and none exists.
	// +optional
	Trunk *TrunkENI `json:"trunk,omitempty"`
}

// TrunkENI is a trunk ENI, or the reason why there is none. It is not listed in enis, because pods
// get no addresses from it.
type TrunkENI struct {
	// ID is the ID of the ENI. Empty if none is attached.
	// +optional
	ID string `json:"id,omitempty"`
	// MAC is the hardware address by which the node finds the link.
	// +optional
	MAC string `json:"mac,omitempty"`
	// DeviceIndex is the device index at which the ENI is attached.
	// +optional
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// Reason is why a wanted trunk ENI is missing (Pending, NoBranches, OtherTrunk, NoRoom,
	// TrunkSubnetFull, Refused), or why an unwanted one still exists (HasBranches). Empty if the
	// state is as desired.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation of the reason.
	// +optional
	Message string `json:"message,omitempty"`
}

// ENILimits are the limits of an instance type.
type ENILimits struct {
	// ENIs is the maximum number of ENIs, including the primary ENI.
	ENIs int32 `json:"enis"`
	// AddressesPerENI is the maximum number of IPv4 addresses per ENI, including its primary
	// address. A prefix counts as one address.
	AddressesPerENI int32 `json:"addressesPerENI"`
	// Prefixes is true if prefixes can be delegated.
	// +optional
	Prefixes bool `json:"prefixes,omitempty"`
	// IPv6AddressesPerENI is the maximum number of IPv6 addresses per ENI. A prefix counts as one
	// address. 0 if the instance type has no IPv6.
	// +optional
	IPv6AddressesPerENI int32 `json:"ipv6AddressesPerENI,omitempty"`
}

// ENI is an elastic network interface.
type ENI struct {
	// MAC is the hardware address by which the node finds the link.
	MAC string `json:"mac"`
	// DeviceIndex is the device index at which the ENI is attached; 0 is eth0.
	DeviceIndex int32 `json:"deviceIndex"`
	// PrimaryIPv4 is the primary IPv4 address of the ENI. In an IPv6-only subnet it is empty, as is
	// subnetCIDR.
	// +optional
	PrimaryIPv4 string `json:"primaryIPv4,omitempty"`
	// SubnetID is the ID of the subnet.
	SubnetID string `json:"subnetID"`
	// SubnetCIDR is the IPv4 CIDR of the subnet.
	// +optional
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// SubnetIPv6CIDRs are the IPv6 CIDRs of the subnet.
	// +listType=atomic
	// +optional
	SubnetIPv6CIDRs []string `json:"subnetIPv6CIDRs,omitempty"`
	// SecurityGroups are the IDs of the ENI's security groups.
	// +listType=atomic
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// The types of a NodeNetwork's conditions. Ready is True when the node has free addresses and
// nothing prevents it from getting more. Degraded is True while a cloud error prevents the operator
// from reaching the desired state; its reason is the class of the error, and its message says when
// the operator retries. SettingsAsInstalled is False while the operator's settings differ from those
// that the chart installed.
const (
	ConditionReady      = "Ready"
	ConditionInDeficit  = "InDeficit"
	ConditionAtCapacity = "AtCapacity"
	ConditionDegraded   = "Degraded"
	ConditionSettings   = "SettingsAsInstalled"
)

// ReasonLinkMissing is the reason of Degraded when the only problem is that links of ENIs are
// missing on the node (status.ipam.missingLinks).
const ReasonLinkMissing = "LinkMissing"
