package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VPC is a network of a provider in which pods have NICs, each a port of it (the VPC
// and NIC design of Arktos): how to reach the provider, who may use it, and what a NIC
// gets that asks for nothing. Pods name it by the annotation berth.dev/vpc.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=vpcs,shortName=bvpc,categories=berth
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",fieldPath=".metadata",message="metadata.name must be at most 63 lower-case letters, digits and hyphens: it is a label of the VPC's NICs"
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`
// +kubebuilder:printcolumn:name="NICs",type=integer,JSONPath=`.status.nics`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VPC struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VPCSpec   `json:"spec"`
	Status VPCStatus `json:"status,omitzero"`
}

// VPCList is a list of VPCs.
//
// +kubebuilder:object:root=true
type VPCList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VPC `json:"items"`
}

// VPCProvider is whose ports a VPC has.
//
// +kubebuilder:validation:Enum=neutron;alcor;ec2
type VPCProvider string

// The providers that there are.
const (
	ProviderNeutron VPCProvider = "neutron" // OpenStack Networking
	ProviderAlcor   VPCProvider = "alcor"   // Alcor's port manager
	ProviderEC2     VPCProvider = "ec2"     // branch interfaces of EC2 instances
)

// VPCSpec is which network it is, and whom it is for. Written by a person.
//
// +kubebuilder:validation:XValidation:rule="!has(self.credentials) || self.provider == 'neutron'",fieldPath=".credentials",message="credentials are of provider neutron; others take none here"
// +kubebuilder:validation:XValidation:rule="!has(self.credentials) || !has(self.endpoint) || self.endpoint.startsWith('https://') || has(self.tls) && self.tls.insecure",fieldPath=".endpoint",message="endpoint must begin with https:// where credentials go to it, or tls.insecure be true"
// +kubebuilder:validation:XValidation:rule="has(self.credentials) || has(self.project) || self.provider == 'ec2'",fieldPath=".project",message="project must be set where there are no credentials that name one"
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == (self.provider != 'ec2')",fieldPath=".endpoint",message="endpoint must be set, but for provider ec2, which is that of the operator's own region"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || !has(self.project) && !has(self.region) && !has(self.tls) && !has(self.hostLabel) && !has(self.defaultSubnets)",fieldPath=".provider",message="provider ec2 takes no project, region, tls, hostLabel and defaultSubnets: instances are known by the provider ID of their Nodes, and the subnets are those of ec2.subnets"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || self.network.matches('^vpc-([0-9a-f]{8}|[0-9a-f]{17})$')",fieldPath=".network",message="network must be the ID of a VPC, such as vpc-0a1b2c3d4e5f67890, for provider ec2"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || !has(self.defaultSecurityGroups) || size(self.defaultSecurityGroups) <= 5",fieldPath=".defaultSecurityGroups",message="defaultSecurityGroups must be 5 at most for provider ec2"
// +kubebuilder:validation:XValidation:rule="!has(self.ec2) || self.provider == 'ec2'",fieldPath=".ec2",message="ec2 is of provider ec2"
// +kubebuilder:validation:XValidation:rule="(has(self.ec2) && has(self.ec2.ipFamilies) ? self.ec2.ipFamilies : 'ipv4') in (has(oldSelf.ec2) && has(oldSelf.ec2.ipFamilies) && oldSelf.ec2.ipFamilies != 'ipv4' ? [oldSelf.ec2.ipFamilies] : ['ipv4', 'dual'])",fieldPath=".ec2",message="ec2.ipFamilies cannot be changed, but from ipv4 to dual: ports have addresses of them; make another VPC object of the same network"
// +kubebuilder:validation:XValidation:rule="!has(self.alcor) || self.provider == 'alcor'",fieldPath=".alcor",message="alcor is of provider alcor"
// +kubebuilder:validation:XValidation:rule="has(self.project) == has(oldSelf.project) && (!has(self.project) || self.project == oldSelf.project)",fieldPath=".project",message="project cannot be changed: ports are in it"
type VPCSpec struct {
	// Provider is neutron, alcor or ec2. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="provider cannot be changed: ports are of it"
	Provider VPCProvider `json:"provider"`

	// Network is the ID of the network in which ports are, or its name if it is
	// the only one of that name; of provider ec2 the ID of the VPC. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network cannot be changed: ports are in it"
	Network string `json:"network"`

	// Endpoint is the URL of Keystone, such as https://keystone.example:5000/v3; without
	// credentials that of Neutron itself, or of Alcor's API gateway. Not set for
	// provider ec2.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && !self.contains('@') && !self.contains('?') && !self.contains('#')",message="endpoint must be a URL that begins with http:// or https://, without user, query and fragment, such as https://keystone.example:5000/v3"
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// Region is the region whose Neutron Keystone is asked for. Empty: the only one.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Region string `json:"region,omitempty"`

	// Project is the ID of the project that ports are made in. Not set: that of
	// the credentials.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z][0-9A-Za-z_-]*$`
	// +optional
	Project string `json:"project,omitempty"`

	// Credentials are what the operator shows to Keystone. Not set: none.
	// +optional
	Credentials *VPCCredentials `json:"credentials,omitempty"`

	// TLS says how the endpoint proves what it is. Not set: by a certificate that
	// the operator's image trusts.
	// +optional
	TLS *VPCTLS `json:"tls,omitempty"`

	// DefaultSubnets are the IDs or names of the subnets of a NIC that names none:
	// one, or one of each family. Not set: as the provider chooses.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	DefaultSubnets []string `json:"defaultSubnets,omitempty"`

	// DefaultSecurityGroups are the IDs of the groups of a NIC that names none. Not
	// set: as the provider chooses, which is the project's default group, or of
	// provider ec2 the groups of the instance's trunk.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	DefaultSecurityGroups []string `json:"defaultSecurityGroups,omitempty"`

	// AllowedNamespaces are those whose pods may have NICs in this VPC. Not set:
	// none.
	// +optional
	AllowedNamespaces *VPCNamespaces `json:"allowedNamespaces,omitempty"`

	// NamespaceLimits are what the NICs of certain namespaces may have. The first entry
	// that a namespace is in counts for it. NICs of a namespace that is in none may name the
	// groups of defaultSecurityGroups only, and any subnet of the VPC.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +optional
	NamespaceLimits []VPCNamespaceLimits `json:"namespaceLimits,omitempty"`

	// MaxNICsPerNamespace is how many NICs with a port a namespace may have in this VPC,
	// pods' and users' together, unless an entry of namespaceLimits says otherwise.
	// +kubebuilder:default=128
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65536",message="maxNICsPerNamespace must be between 1 and 65536"
	// +optional
	MaxNICsPerNamespace *int32 `json:"maxNICsPerNamespace,omitempty"`

	// MaxNICsPerPod is how many NICs a pod may have in this VPC.
	// +kubebuilder:default=4
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="maxNICsPerPod must be between 1 and 32"
	// +optional
	MaxNICsPerPod *int32 `json:"maxNICsPerPod,omitempty"`

	// MaxNICsPerNode is how many NICs in this VPC the pods of a node may have. Not
	// set: any number.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65536",message="maxNICsPerNode must be between 1 and 65536"
	// +optional
	MaxNICsPerNode *int32 `json:"maxNICsPerNode,omitempty"`

	// HostLabel is the label of Nodes that has the name by which the provider knows
	// the machine. Whoever may set it says where ports are bound: prefer one that begins
	// with node-restriction.kubernetes.io/, which a kubelet cannot set. Not set: the
	// Node's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="hostLabel must be the key of a label, such as node-restriction.kubernetes.io/host"
	// +optional
	HostLabel string `json:"hostLabel,omitempty"`

	// PortMAC says who chooses the MAC addresses of ports that Berth makes.
	// +kubebuilder:default=Derived
	// +optional
	PortMAC PortMAC `json:"portMAC,omitempty"`

	// Alcor is what is of provider alcor only.
	// +optional
	Alcor *AlcorSpec `json:"alcor,omitempty"`

	// EC2 is what is of provider ec2 only.
	// +optional
	EC2 *EC2Spec `json:"ec2,omitempty"`
}

// EC2Spec is what EC2's branch interfaces are like.
type EC2Spec struct {
	// Subnets are the IDs of the subnets of a NIC that names none: of those in the
	// zone of its node, the one with most free addresses. Not set: the subnet of the
	// node's trunk.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=24
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^subnet-([0-9a-f]{8}|[0-9a-f]{17})$'))",message="subnets must be IDs, such as subnet-0a1b2c3d4e5f67890"
	// +optional
	Subnets []string `json:"subnets,omitempty"`

	// IPFamilies are those of which each branch interface has an address for its pod:
	// ipv4, ipv6, or dual, one of each. EC2 gives it one of IPv4 in any case, which
	// pods do not have with ipv6. Not set: ipv4. It cannot be changed, but from ipv4
	// to dual, which counts for new branch interfaces.
	// +kubebuilder:validation:Enum=ipv4;ipv6;dual
	// +optional
	IPFamilies string `json:"ipFamilies,omitempty"`

	// WarmBranches is how many branch interfaces are kept ready on each node for its next
	// pods, of each set of security groups and subnet that pods there have or had within ten
	// minutes: such a pod does not wait for EC2. They take as many addresses of the subnets,
	// and none of the branch interfaces that pods need. 0: none; not set: 1.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="warmBranches must be between 0 and 32"
	// +optional
	WarmBranches *int32 `json:"warmBranches,omitempty"`
}

// IPFamilies are those of which each branch interface has an address for its pod, as EC2Spec has them;
// ipv4 where nothing is set.
func (s VPCSpec) IPFamilies() string {
	if s.EC2 == nil || s.EC2.IPFamilies == "" {
		return "ipv4"
	}
	return s.EC2.IPFamilies
}

// WarmBranches is how many branch interfaces are kept ready for a node's next pods, of each set of
// groups and subnet.
func (s VPCSpec) WarmBranches() int {
	switch {
	case s.Provider != ProviderEC2:
		return 0
	case s.EC2 == nil || s.EC2.WarmBranches == nil:
		return 1
	}
	return int(*s.EC2.WarmBranches)
}

// PortMAC is who chooses the MAC addresses of ports.
//
// +kubebuilder:validation:Enum=Derived;Provider
type PortMAC string

// Who may choose.
const (
	// PortMACDerived follows from the PodNIC, so that the provider itself refuses a
	// second port for it: two ports of a network cannot have one MAC address. The
	// credentials must be allowed to choose it (Neutron's policy
	// create_port:mac_address).
	PortMACDerived PortMAC = "Derived"
	// PortMACProvider leaves it to the provider. A second port, which an operator
	// makes that was replaced by another, is found and deleted later.
	PortMACProvider PortMAC = "Provider"
)

// VPCCredentials are those of a user of Keystone.
type VPCCredentials struct {
	// Type is password or applicationCredential.
	// +kubebuilder:validation:Enum=password;applicationCredential
	Type CredentialsType `json:"type"`

	// SecretName is a Secret of the operator's own namespace. Its keys for password
	// are username, password, userDomain, project and projectDomain, for
	// applicationCredential id and secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName"`
}

// CredentialsType is how a user proves to Keystone who it is.
type CredentialsType string

// The types of credentials.
const (
	CredentialsPassword    CredentialsType = "password"
	CredentialsApplication CredentialsType = "applicationCredential"
)

// VPCTLS says how an endpoint proves what it is.
type VPCTLS struct {
	// CABundle is certificates in PEM that are trusted in place of those of the
	// operator's image.
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="caBundle must be certificates in PEM, which begin with -----BEGIN CERTIFICATE-----"
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// ServerName is the name that certificates must have. Not set: that of the URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServerName string `json:"serverName,omitempty"`

	// Insecure takes any certificate, and lets credentials go to an endpoint without
	// TLS. For tests: whoever is on the way can read and use them.
	// +optional
	Insecure bool `json:"insecure,omitempty"`
}

// DefaultMaxNICsPerNamespace is MaxNICsPerNamespace where it is not set.
const DefaultMaxNICsPerNamespace = 128

// VPCNamespaceLimits are what the NICs of some namespaces may have in a VPC.
type VPCNamespaceLimits struct {
	// Namespaces are those that the limits are for.
	Namespaces VPCNamespaces `json:"namespaces"`

	// SecurityGroups are the IDs of the groups that NICs may name beside those of
	// defaultSecurityGroups; "*" is any group. Not set: none.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// Subnets are the IDs or names of the subnets that NICs may be in. A NIC that names
	// none is in those of the VPC's default subnets that are among them, else in one of them.
	// Not set: all subnets of the VPC.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	Subnets []string `json:"subnets,omitempty"`

	// MaxNICs is how many NICs with a port each of the namespaces may have. Not set:
	// maxNICsPerNamespace of the VPC.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="maxNICs must be between 0 and 65536"
	// +optional
	MaxNICs *int32 `json:"maxNICs,omitempty"`
}

// VPCNamespaces are the namespaces that are named and those that have the labels.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.selector)",message="expected names, a selector or both"
type VPCNamespaces struct {
	// Names are namespaces; "*" is all there are.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(n, n == '*' || n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",message="names must be names of namespaces, or *"
	// +optional
	Names []string `json:"names,omitempty"`

	// Selector selects namespaces by their labels. An empty one selects all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// AlcorSpec is what an Alcor's node agents are told.
type AlcorSpec struct {
	// NetnsPrefix begins the name of the network namespace in which an agent puts the
	// veths of a VPC; the VPC's ID follows.
	// +kubebuilder:default=vpc-ns
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	// +optional
	NetnsPrefix string `json:"netnsPrefix,omitempty"`
}

// VPCStatus is how the VPC does. Written by the operator.
type VPCStatus struct {
	// NetworkID is the ID of spec.network.
	// +optional
	NetworkID string `json:"networkID,omitempty"`

	// ProjectID is the ID of the project whose ports the credentials see. While the VPC
	// has PodNICs, credentials of another project are not used: it would say of their
	// ports that there are none.
	// +optional
	ProjectID string `json:"projectID,omitempty"`

	// MTU is that of the network, in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// Subnets are those of the network, by which annotations of pods are checked.
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=1024
	// +optional
	Subnets []VPCSubnet `json:"subnets,omitempty"`

	// NICs is how many PodNICs name this VPC.
	// +optional
	NICs int32 `json:"nics"`

	// Conditions are Ready, Reachable, CredentialsAccepted and NetworkFound.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VPCSubnet is a subnet of the network, as the provider tells it.
type VPCSubnet struct {
	// ID is the provider's.
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// Name may be that of several.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Name string `json:"name,omitempty"`

	// CIDR is its addresses.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`

	// IPv6CIDR is its addresses of IPv6 where cidr is those of IPv4, of a subnet that
	// has both; empty: it has not.
	// +kubebuilder:validation:MaxLength=49
	// +optional
	IPv6CIDR string `json:"ipv6CIDR,omitempty"`

	// Gateway is the address of its router; empty without one.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// The types of a VPC's conditions, besides Ready.
const (
	ConditionReachable           = "Reachable"           // the provider answers
	ConditionCredentialsAccepted = "CredentialsAccepted" // and lets the operator in
	ConditionNetworkFound        = "NetworkFound"        // and has the network
)

const (
	// AnnotationVPC names a VPC, on a pod or, for all its pods, on a namespace.
	AnnotationVPC = "berth.dev/vpc"
	// AnnotationNICs is a pod's list of NICs, in YAML or JSON.
	AnnotationNICs = "berth.dev/nics"
	// AnnotationNICPolicy names, on a pod, the policies whose NICs its other annotations ask
	// for, as KIND/NAME and with commas between; empty on a pod that none selects. The
	// operator writes it as the pod is made.
	AnnotationNICPolicy = "berth.dev/nic-policy"
	// AnnotationNICPolicyOverlap names, likewise, those that select the pod too and do not
	// count.
	AnnotationNICPolicyOverlap = "berth.dev/nic-policy-overlap"
	// ResourceBranches is the extended resource of Nodes of which a pod asks for as many
	// as it has NICs in VPCs of provider ec2.
	ResourceBranches = "berth.dev/branch-interfaces"
	// FinalizerVPC keeps a VPC until none of its PodNICs is left.
	FinalizerVPC = "berth.dev/nics"
)
