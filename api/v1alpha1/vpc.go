package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VPC is a network of a provider in which pods have NICs, each backed by a port of the network (the
// VPC and NIC design of Arktos). It defines how to reach the provider, who may use the network, and
// the defaults of its NICs. Pods name it in the annotation berth.dev/vpc.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=vpcs,shortName=bvpc,categories=berth
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",fieldPath=".metadata",message="metadata.name must be at most 63 lower-case letters, digits and hyphens, because it is a label of the VPC's NICs"
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

// VPCProvider is the provider of a VPC's ports.
//
// +kubebuilder:validation:Enum=neutron;alcor;ec2
type VPCProvider string

// The supported providers.
const (
	ProviderNeutron VPCProvider = "neutron" // OpenStack Networking
	ProviderAlcor   VPCProvider = "alcor"   // Alcor's port manager
	ProviderEC2     VPCProvider = "ec2"     // branch interfaces of EC2 instances
)

// VPCSpec identifies the network and defines who may use it. Written by a person.
//
// +kubebuilder:validation:XValidation:rule="!has(self.credentials) || self.provider == 'neutron'",fieldPath=".credentials",message="credentials are supported by provider neutron only"
// +kubebuilder:validation:XValidation:rule="!has(self.credentials) || !has(self.endpoint) || self.endpoint.startsWith('https://') || has(self.tls) && self.tls.insecure",fieldPath=".endpoint",message="endpoint must begin with https:// if credentials are set, unless tls.insecure is true"
// +kubebuilder:validation:XValidation:rule="has(self.credentials) || has(self.project) || self.provider == 'ec2'",fieldPath=".project",message="project must be set if there are no credentials"
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == (self.provider != 'ec2')",fieldPath=".endpoint",message="endpoint must be set for all providers except ec2, which uses the operator's own region"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || !has(self.project) && !has(self.region) && !has(self.tls) && !has(self.hostLabel) && !has(self.defaultSubnets)",fieldPath=".provider",message="provider ec2 does not support project, region, tls, hostLabel and defaultSubnets: instances are identified by the provider ID of their Nodes, and ec2.subnets lists the subnets"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || self.network.matches('^vpc-([0-9a-f]{8}|[0-9a-f]{17})$')",fieldPath=".network",message="network must be a VPC ID such as vpc-0a1b2c3d4e5f67890 for provider ec2"
// +kubebuilder:validation:XValidation:rule="self.provider != 'ec2' || !has(self.defaultSecurityGroups) || size(self.defaultSecurityGroups) <= 5",fieldPath=".defaultSecurityGroups",message="defaultSecurityGroups must have at most 5 entries for provider ec2"
// +kubebuilder:validation:XValidation:rule="!has(self.ec2) || self.provider == 'ec2'",fieldPath=".ec2",message="ec2 requires provider ec2"
// +kubebuilder:validation:XValidation:rule="(has(self.ec2) && has(self.ec2.ipFamilies) ? self.ec2.ipFamilies : 'ipv4') in (has(oldSelf.ec2) && has(oldSelf.ec2.ipFamilies) && oldSelf.ec2.ipFamilies != 'ipv4' ? [oldSelf.ec2.ipFamilies] : ['ipv4', 'dual'])",fieldPath=".ec2",message="ec2.ipFamilies can only be changed from ipv4 to dual, because ports have addresses of these families; make another VPC object for the same network"
// +kubebuilder:validation:XValidation:rule="!has(self.alcor) || self.provider == 'alcor'",fieldPath=".alcor",message="alcor requires provider alcor"
// +kubebuilder:validation:XValidation:rule="has(self.project) == has(oldSelf.project) && (!has(self.project) || self.project == oldSelf.project)",fieldPath=".project",message="project cannot be changed: it contains the ports"
type VPCSpec struct {
	// Provider is neutron, alcor or ec2. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="provider cannot be changed: it owns the ports"
	Provider VPCProvider `json:"provider"`

	// Network is the ID of the network that contains the ports, or its name if the name is unique.
	// For provider ec2 it is the ID of the VPC. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network cannot be changed: it contains the ports"
	Network string `json:"network"`

	// Endpoint is the URL of Keystone, such as https://keystone.example:5000/v3. Without
	// credentials it is the URL of Neutron itself, or of Alcor's API gateway. Not supported for
	// provider ec2.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && !self.contains('@') && !self.contains('?') && !self.contains('#')",message="endpoint must be an http:// or https:// URL without user, query and fragment, such as https://keystone.example:5000/v3"
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// Region is the region of the Neutron endpoint in Keystone's catalog. If empty, the only
	// region.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Region string `json:"region,omitempty"`

	// Project is the ID of the project in which ports are created. If unset, the project of the
	// credentials.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z][0-9A-Za-z_-]*$`
	// +optional
	Project string `json:"project,omitempty"`

	// Credentials are the operator's credentials for Keystone. If unset, none are used.
	// +optional
	Credentials *VPCCredentials `json:"credentials,omitempty"`

	// TLS configures the verification of the endpoint's certificate. If unset, the certificate
	// authorities of the operator's image are trusted.
	// +optional
	TLS *VPCTLS `json:"tls,omitempty"`

	// DefaultSubnets are the IDs or names of the subnets of NICs that name none: one, or one per
	// family. If unset, the provider chooses.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	DefaultSubnets []string `json:"defaultSubnets,omitempty"`

	// DefaultSecurityGroups are the IDs of the security groups of NICs that name none. If unset,
	// the provider chooses: the project's default group or, for provider ec2, the groups of the
	// instance's trunk ENI.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	DefaultSecurityGroups []string `json:"defaultSecurityGroups,omitempty"`

	// AllowedNamespaces are the namespaces whose pods may have NICs in this VPC. If unset, none.
	// +optional
	AllowedNamespaces *VPCNamespaces `json:"allowedNamespaces,omitempty"`

	// NamespaceLimits set what the NICs of certain namespaces may use. The first entry that matches
	// a namespace applies. NICs of namespaces without an entry may use the groups in
	// defaultSecurityGroups only, and any subnet of the VPC.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +optional
	NamespaceLimits []VPCNamespaceLimits `json:"namespaceLimits,omitempty"`

	// MaxNICsPerNamespace is the maximum number of NICs with a port that a namespace may have in
	// this VPC. It counts NICs created for pods and NICs created by users. An entry of
	// namespaceLimits takes precedence.
	// +kubebuilder:default=128
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65536",message="maxNICsPerNamespace must be between 1 and 65536"
	// +optional
	MaxNICsPerNamespace *int32 `json:"maxNICsPerNamespace,omitempty"`

	// MaxNICsPerPod is the maximum number of NICs that a pod may have in this VPC.
	// +kubebuilder:default=4
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="maxNICsPerPod must be between 1 and 32"
	// +optional
	MaxNICsPerPod *int32 `json:"maxNICsPerPod,omitempty"`

	// MaxNICsPerNode is the maximum number of NICs that the pods of a node may have in this VPC. If
	// unset, there is no limit.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65536",message="maxNICsPerNode must be between 1 and 65536"
	// +optional
	MaxNICsPerNode *int32 `json:"maxNICsPerNode,omitempty"`

	// HostLabel is the Node label that holds the provider's name for the machine. Anyone who may
	// set the label decides where ports are bound: prefer a label with the prefix
	// node-restriction.kubernetes.io/, which a kubelet cannot set. If unset, the name of the Node
	// is used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="hostLabel must be a label key, such as node-restriction.kubernetes.io/host"
	// +optional
	HostLabel string `json:"hostLabel,omitempty"`

	// PortMAC is who chooses the MAC addresses of the ports that Berth creates.
	// +kubebuilder:default=Derived
	// +optional
	PortMAC PortMAC `json:"portMAC,omitempty"`

	// Alcor has the settings of provider alcor.
	// +optional
	Alcor *AlcorSpec `json:"alcor,omitempty"`

	// EC2 has the settings of provider ec2.
	// +optional
	EC2 *EC2Spec `json:"ec2,omitempty"`
}

// EC2Spec configures EC2 branch interfaces.
type EC2Spec struct {
	// Subnets are the IDs of the subnets of NICs that name none. Of the subnets in the node's zone,
	// the one with the most free addresses is used. If unset, the subnet of the node's trunk ENI.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=24
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.matches('^subnet-([0-9a-f]{8}|[0-9a-f]{17})$'))",message="subnets must be IDs, such as subnet-0a1b2c3d4e5f67890"
	// +optional
	Subnets []string `json:"subnets,omitempty"`

	// IPFamilies are the families of the pod addresses on a branch interface: ipv4, ipv6, or dual
	// for one address of each. If unset, ipv4. EC2 always assigns an IPv4 address, which pods do
	// not get with ipv6. The only change allowed is from ipv4 to dual, which applies to new branch
	// interfaces.
	// +kubebuilder:validation:Enum=ipv4;ipv6;dual
	// +optional
	IPFamilies string `json:"ipFamilies,omitempty"`

	// WarmBranches is the number of idle branch interfaces that each node keeps for new pods, so
	// that these need not wait for EC2. Each combination of security groups and subnet used on the
	// node in the last ten minutes has its own. Warm branch interfaces use addresses of the
	// subnets; they give way to pods that need the node's branch capacity. Defaults to 1; 0
	// disables them.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="warmBranches must be between 0 and 32"
	// +optional
	WarmBranches *int32 `json:"warmBranches,omitempty"`
}

// IPFamilies returns the families of the pod addresses on a branch interface (EC2Spec.IPFamilies),
// or ipv4 if unset.
func (s VPCSpec) IPFamilies() string {
	if s.EC2 == nil || s.EC2.IPFamilies == "" {
		return "ipv4"
	}
	return s.EC2.IPFamilies
}

// WarmBranches returns the number of idle branch interfaces that a node keeps per combination of
// security groups and subnet. It is 0 for other providers than ec2.
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

// The values of PortMAC.
const (
	// PortMACDerived derives the MAC address from the PodNIC. The provider then rejects a second
	// port for the same PodNIC, because two ports of a network cannot share a MAC address. The
	// credentials must have the right to set it (Neutron's policy create_port:mac_address).
	PortMACDerived PortMAC = "Derived"
	// PortMACProvider lets the provider choose. If an operator creates a second port after it has
	// been replaced as leader, that port is found and deleted later.
	PortMACProvider PortMAC = "Provider"
)

// VPCCredentials are the credentials of a Keystone user.
type VPCCredentials struct {
	// Type is password or applicationCredential.
	// +kubebuilder:validation:Enum=password;applicationCredential
	Type CredentialsType `json:"type"`

	// SecretName is a Secret in the operator's namespace. For password its keys are username,
	// password, userDomain, project and projectDomain; for applicationCredential they are id and
	// secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName"`
}

// CredentialsType is how the operator authenticates to Keystone.
type CredentialsType string

// The types of credentials.
const (
	CredentialsPassword    CredentialsType = "password"
	CredentialsApplication CredentialsType = "applicationCredential"
)

// VPCTLS configures the verification of an endpoint's certificate.
type VPCTLS struct {
	// CABundle are PEM certificates that are trusted instead of those of the operator's image.
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="caBundle must have PEM certificates, which begin with -----BEGIN CERTIFICATE-----"
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// ServerName is the expected name in the certificate. If unset, the host name of the URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServerName string `json:"serverName,omitempty"`

	// Insecure accepts any certificate, and allows credentials to be sent without TLS. For tests
	// only: anyone on the network path can read and use the credentials.
	// +optional
	Insecure bool `json:"insecure,omitempty"`
}

// DefaultMaxNICsPerNamespace is the default of maxNICsPerNamespace.
const DefaultMaxNICsPerNamespace = 128

// VPCNamespaceLimits set what the NICs of some namespaces may use in a VPC.
type VPCNamespaceLimits struct {
	// Namespaces are the namespaces that the limits apply to.
	Namespaces VPCNamespaces `json:"namespaces"`

	// SecurityGroups are the IDs of security groups that NICs may use in addition to
	// defaultSecurityGroups; "*" allows any group. If unset, none.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// Subnets are the IDs or names of the subnets that NICs may use. A NIC that names no subnet
	// gets the VPC's default subnets that are in this list or, if none is, a subnet of the list. If
	// unset, all subnets of the VPC are allowed.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	Subnets []string `json:"subnets,omitempty"`

	// MaxNICs is the maximum number of NICs with a port in each of the namespaces. If unset,
	// maxNICsPerNamespace of the VPC applies.
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 65536",message="maxNICs must be between 0 and 65536"
	// +optional
	MaxNICs *int32 `json:"maxNICs,omitempty"`
}

// VPCNamespaces selects namespaces by name, by label, or both. A namespace that matches either is
// selected.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.selector)",message="names, selector or both must be set"
type VPCNamespaces struct {
	// Names are names of namespaces; "*" matches all.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(n, n == '*' || n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",message="names must be namespace names, or *"
	// +optional
	Names []string `json:"names,omitempty"`

	// Selector selects namespaces by their labels. An empty selector matches all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// AlcorSpec has settings for Alcor's node agents.
type AlcorSpec struct {
	// NetnsPrefix is the prefix of the network namespace in which an agent puts the veths of a VPC.
	// The ID of the VPC follows it.
	// +kubebuilder:default=vpc-ns
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	// +optional
	NetnsPrefix string `json:"netnsPrefix,omitempty"`
}

// VPCStatus is the observed state of the VPC. Written by the operator.
type VPCStatus struct {
	// NetworkID is the ID of spec.network.
	// +optional
	NetworkID string `json:"networkID,omitempty"`

	// ProjectID is the ID of the project that the credentials are for. While the VPC has PodNICs,
	// credentials of another project are not used, because their ports would appear to be missing.
	// +optional
	ProjectID string `json:"projectID,omitempty"`

	// MTU is the MTU of the network, in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// Subnets are the subnets of the network. Annotations of pods are validated against them.
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=1024
	// +optional
	Subnets []VPCSubnet `json:"subnets,omitempty"`

	// NICs is the number of PodNICs in this VPC.
	// +optional
	NICs int32 `json:"nics"`

	// Conditions are Ready, Reachable, CredentialsAccepted and NetworkFound.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VPCSubnet is a subnet of the network, as reported by the provider.
type VPCSubnet struct {
	// ID is the provider's ID of the subnet.
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// Name is the name of the subnet. Names need not be unique.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Name string `json:"name,omitempty"`

	// CIDR is the range of addresses of the subnet.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`

	// IPv6CIDR is the IPv6 range of a dual-stack subnet whose cidr is the IPv4 range. Empty
	// otherwise.
	// +kubebuilder:validation:MaxLength=49
	// +optional
	IPv6CIDR string `json:"ipv6CIDR,omitempty"`

	// Gateway is the address of the subnet's router. Empty if it has none.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// The types of a VPC's conditions, in addition to Ready.
const (
	ConditionReachable           = "Reachable"           // the provider responds
	ConditionCredentialsAccepted = "CredentialsAccepted" // the provider accepts the operator's credentials
	ConditionNetworkFound        = "NetworkFound"        // the network exists
)

const (
	// AnnotationVPC names a VPC. It is set on a pod or, for all its pods, on a namespace.
	AnnotationVPC = "berth.dev/vpc"
	// AnnotationNICs is a pod's list of NICs, in YAML or JSON.
	AnnotationNICs = "berth.dev/nics"
	// AnnotationNICPolicy on a pod lists the policies that its other NIC annotations come from, as
	// KIND/NAME separated by commas. It is empty on a pod that no policy selects. The operator sets
	// it when the pod is created.
	AnnotationNICPolicy = "berth.dev/nic-policy"
	// AnnotationNICPolicyOverlap on a pod lists, in the same form, the policies that also select
	// the pod but do not apply.
	AnnotationNICPolicyOverlap = "berth.dev/nic-policy-overlap"
	// ResourceBranches is the extended resource for branch interfaces. A pod requests as many as it
	// has NICs in VPCs of provider ec2.
	ResourceBranches = "berth.dev/branch-interfaces"
	// FinalizerVPC keeps a VPC until all its PodNICs are deleted.
	FinalizerVPC = "berth.dev/nics"
)
