package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Egress is a set of gateway pods by which client pods reach networks outside: clients
// send what goes to the destinations through Foo-over-UDP tunnels to a gateway, which
// translates it to its own address (the design of Coil v2, "On-demand NAT for egress
// traffics"). Pods name it by the annotation egress.berth.dev/NAMESPACE, or it selects
// them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=egresses,shortName=begress,categories=berth
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 52",fieldPath=".metadata",message="metadata.name must begin with a letter and have at most 52 lower-case letters, digits and hyphens: its Service and its pods are named by it"
// +kubebuilder:printcolumn:name="Destinations",type=string,JSONPath=`.spec.destinations`
// +kubebuilder:printcolumn:name="Gateways",type=integer,JSONPath=`.status.readyGateways`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Clients",type=integer,JSONPath=`.status.clients`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Egress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EgressSpec   `json:"spec"`
	Status EgressStatus `json:"status,omitzero"`
}

// EgressList is a list of Egresses.
//
// +kubebuilder:object:root=true
type EgressList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Egress `json:"items"`
}

// EgressSpec is what is reached by which gateways, and by whom. Written by a person; the
// replicas by an autoscaler too.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sessionAffinityConfig) || self.sessionAffinity == 'ClientIP'",fieldPath=".sessionAffinityConfig",message="sessionAffinityConfig is of sessionAffinity ClientIP"
type EgressSpec struct {
	// Destinations are the networks that clients reach by the gateways: CIDRs, of
	// families that the gateways have addresses of.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(d, isCIDR(d) && string(cidr(d).masked()) == d)",message="destinations must be CIDRs without host bits, such as 203.0.113.0/24, 0.0.0.0/0 or 2001:db8::/32"
	Destinations []string `json:"destinations"`

	// Replicas is how many gateways there are.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Strategy is how gateways are replaced by new ones, as of a Deployment. Not set: as a
	// Deployment does.
	// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type in ['Recreate', 'RollingUpdate']",fieldPath=".type",message="type must be Recreate or RollingUpdate"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.type) || self.type == 'RollingUpdate'",fieldPath=".rollingUpdate",message="rollingUpdate is of type RollingUpdate"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || (type(self.rollingUpdate.maxSurge) == int ? int(self.rollingUpdate.maxSurge) >= 0 : string(self.rollingUpdate.maxSurge).matches('^[0-9]+%$'))",fieldPath=".rollingUpdate.maxSurge",message="maxSurge must be a number of pods, or a percentage such as 25%"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxUnavailable) || (type(self.rollingUpdate.maxUnavailable) == int ? int(self.rollingUpdate.maxUnavailable) >= 0 : string(self.rollingUpdate.maxUnavailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".rollingUpdate.maxUnavailable",message="maxUnavailable must be a number of pods, or a percentage from 0% to 100%"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || !has(self.rollingUpdate.maxUnavailable) || !(string(self.rollingUpdate.maxSurge) in ['0', '0%']) || !(string(self.rollingUpdate.maxUnavailable) in ['0', '0%'])",fieldPath=".rollingUpdate",message="maxSurge and maxUnavailable cannot both be 0: no gateway could ever be replaced"
	// +optional
	Strategy *appsv1.DeploymentStrategy `json:"strategy,omitempty"`

	// Template is what the gateways' pods have besides what Berth gives them.
	// +optional
	Template *EgressPodTemplate `json:"template,omitempty"`

	// SessionAffinity says whether all connections of a client go by one gateway
	// (ClientIP), or each by one of them (None).
	// +kubebuilder:validation:Enum=ClientIP;None
	// +kubebuilder:default=ClientIP
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`

	// SessionAffinityConfig is that of the Service: for how many seconds a client keeps its
	// gateway.
	// +kubebuilder:validation:XValidation:rule="has(self.clientIP) && has(self.clientIP.timeoutSeconds) && self.clientIP.timeoutSeconds >= 1 && self.clientIP.timeoutSeconds <= 86400",fieldPath=".clientIP",message="clientIP.timeoutSeconds must be from 1 to 86400"
	// +optional
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`

	// FouSourcePortAuto has the tunnels' UDP source port chosen from each connection's
	// addresses and ports, so that connections of one client may take different paths
	// and, by the Service, different gateways. Else it is the port of FoU.
	// +optional
	FouSourcePortAuto bool `json:"fouSourcePortAuto,omitempty"`

	// PodDisruptionBudget is that of the gateways. Not set: there is none.
	// +optional
	PodDisruptionBudget *EgressPodDisruptionBudget `json:"podDisruptionBudget,omitempty"`

	// TunnelTo says where clients' tunnels lead: to the gateways themselves (Gateways), or
	// to the Service's address (Service), from where kube-proxy or its like leads to a
	// gateway.
	// +kubebuilder:default=Gateways
	// +optional
	TunnelTo EgressTunnelTo `json:"tunnelTo,omitempty"`

	// Clients selects pods that use this Egress without an annotation. Not set: none. Pods of
	// another namespace only where that consents by its annotation
	// berth.dev/egress-selectable-from, or where the Egress's namespace has the label
	// berth.dev/egress-may-select: "true"; never those of system namespaces. Of the Egresses of a
	// namespace without that label the 32 oldest select pods.
	// +optional
	Clients *EgressClientSelector `json:"clients,omitempty"`

	// AllowedNamespaces are those whose pods may name this Egress by annotation, besides
	// its own. Pods that clients selects may in any case.
	// +optional
	AllowedNamespaces *VPCNamespaces `json:"allowedNamespaces,omitempty"`

	// OriginatingOnly has clients' answers to connections from outside go as they would
	// without the Egress: only connections that the client begins go by a gateway.
	// +optional
	OriginatingOnly bool `json:"originatingOnly,omitempty"`
}

// EgressTunnelTo is where tunnels of clients lead.
//
// +kubebuilder:validation:Enum=Gateways;Service
type EgressTunnelTo string

// Where they may lead.
const (
	TunnelToGateways EgressTunnelTo = "Gateways"
	TunnelToService  EgressTunnelTo = "Service"
)

// EgressClientSelector selects pods by their namespace's labels and their own. What is not
// set selects all; one of the two must be set.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaceSelector) || has(self.podSelector)",message="clients must have a namespaceSelector, a podSelector or both"
type EgressClientSelector struct {
	// NamespaceSelector selects namespaces. Not set: the Egress's own; empty: all.
	// +optional
	NamespaceSelector *LabelSelector `json:"namespaceSelector,omitempty"`

	// PodSelector selects pods in these namespaces. Not set or empty: all.
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`
}

// EgressPodTemplate is what a person adds to the gateways' pods.
type EgressPodTemplate struct {
	// Metadata are labels and annotations.
	// +optional
	Metadata EgressPodMetadata `json:"metadata,omitzero"`

	// Spec is part of a PodSpec, such as affinity, tolerations, nodeSelector,
	// priorityClassName, terminationGracePeriodSeconds, or of the container named egress
	// its resources.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +optional
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// EgressPodMetadata are labels and annotations of the gateways' pods.
type EgressPodMetadata struct {
	// Labels are added to those that Berth gives them; of domain berth.dev none may be
	// set.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))",message="labels must have keys such as example.com/name"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('berth.dev/') && !k.contains('.berth.dev/'))",message="labels of berth.dev are Berth's own"
	// +optional
	Labels map[string]EgressPodLabel `json:"labels,omitempty"`

	// Annotations are added likewise.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))",message="annotations must have keys such as example.com/name"
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// EgressPodLabel is the value of a label (Kubernetes documentation, "Labels and
// Selectors").
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type EgressPodLabel string

// EgressPodDisruptionBudget says how many gateways may be away at once by somebody's will.
//
// +kubebuilder:validation:XValidation:rule="has(self.minAvailable) != has(self.maxUnavailable)",message="podDisruptionBudget must have minAvailable or maxUnavailable, and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || (type(self.minAvailable) == int ? int(self.minAvailable) >= 0 : string(self.minAvailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".minAvailable",message="minAvailable must be a number of pods, or a percentage from 0% to 100%"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || (type(self.maxUnavailable) == int ? int(self.maxUnavailable) >= 0 : string(self.maxUnavailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".maxUnavailable",message="maxUnavailable must be a number of pods, or a percentage from 0% to 100%"
type EgressPodDisruptionBudget struct {
	// MinAvailable is how many must stay.
	// +optional
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`

	// MaxUnavailable is how many may be away.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// EgressStatus is how the Egress does. Written by the operator.
type EgressStatus struct {
	// ObservedGeneration is the generation of the spec that the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Replicas is how many gateway pods there are, for autoscalers.
	// +optional
	Replicas int32 `json:"replicas"`

	// Selector selects them, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// ReadyGateways is how many take new connections.
	// +optional
	ReadyGateways int32 `json:"readyGateways"`

	// Clients is how many pods the gateways serve, RefusedClients how many would be
	// clients and may not; their EgressClients say why.
	// +optional
	Clients int32 `json:"clients"`
	// +optional
	RefusedClients int32 `json:"refusedClients,omitempty"`

	// ServiceIPs are the addresses of the Service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +optional
	ServiceIPs []string `json:"serviceIPs,omitempty"`

	// Gateways are the gateways that clients' tunnels may lead to, by which the nodes set
	// tunnels up: those that are ready, those that end and still serve connections, and those
	// whose program is being started again.
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=1024
	// +optional
	Gateways []EgressGateway `json:"gateways,omitempty"`

	// Conditions are Available, ServiceReady and ClientsReady.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressGateway is a gateway pod.
type EgressGateway struct {
	// Name is the pod's.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the pod's.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`

	// Addresses are the pod's, one of a family.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses"`

	// Ending tells that it is to get no new connections, and serves those that it has: it ends, or
	// its program is being started again while others are ready.
	// +optional
	Ending bool `json:"ending,omitempty"`
}

// The types of an Egress's conditions.
const (
	ConditionAvailable    = "Available"    // a gateway is ready
	ConditionServiceReady = "ServiceReady" // the Service and what else belongs to the Egress are as asked for
	ConditionClientsReady = "ClientsReady" // no pod and no namespace is kept from being a client that would be one, and none waits
)

// The reasons of Available and ServiceReady.
const (
	EgressGatewaysReady   = "GatewaysReady"   // Available: gateways take connections to all destinations
	EgressNoReplicas      = "NoReplicas"      // Available: spec.replicas is 0
	EgressNoGateways      = "NoGateways"      // Available: none is ready
	EgressForeignPods     = "ForeignPods"     // Available: the Service selects pods that are no gateways
	EgressFamilyMissing   = "FamilyMissing"   // Available: destinations are of a family that gateways have no address of
	EgressApplied         = "Applied"         // ServiceReady: all is there
	EgressInvalidTemplate = "InvalidTemplate" // ServiceReady: spec.template is no template of a pod
	EgressNameTaken       = "NameTaken"       // ServiceReady: an object of that name is not the Egress's
	EgressRefused         = "Refused"         // ServiceReady: the API server refuses an object
	EgressPodsRefused     = "PodsRefused"     // ServiceReady: the API server refuses the gateways' pods
)

const (
	// AnnotationEgressPrefix with the name of a namespace is the key of a pod's annotation
	// that names Egresses of that namespace, separated by commas.
	AnnotationEgressPrefix = "egress.berth.dev/"
	// LabelEgress is the name of the Egress that an object belongs to, in its namespace.
	LabelEgress = "egress.berth.dev/name"
	// AnnotationEgressGateway with the value "true" tells the node's daemon that a pod is a
	// gateway: packets are forwarded in its network namespace, which the pod, without
	// privileges, cannot have by itself. The operator sets it.
	AnnotationEgressGateway = "berth.dev/egress-gateway"
	// AnnotationEgressSelectableFrom on a Namespace is its consent: it names the namespaces,
	// separated by commas, whose Egresses may select its pods (spec.clients); "*" is all of them.
	// Roles in a namespace do not let anybody write it.
	AnnotationEgressSelectableFrom = "berth.dev/egress-selectable-from"
	// LabelEgressMaySelect with the value "true" on a Namespace is an administrator's grant: its
	// Egresses may select pods of all namespaces but system namespaces, without their consent.
	LabelEgressMaySelect = "berth.dev/egress-may-select"
)

// EgressPort is the UDP port of Foo-over-UDP, of gateways and clients, unless the settings
// of operator and daemons say otherwise (the one of the source document).
const EgressPort = 5555

// EgressHealthPort is the TCP port where a gateway answers probes, of the kubelet and of the
// daemons whose pods use it, and has its metrics.
const EgressHealthPort = 61690

// At EgressHealthPort a gateway tells by HTTP whether it serves a pod: GET EgressClientsPath and the
// pod's UID, with a parameter EgressClientAddress for each of its addresses. The answer is 200 as
// soon as it does.
const (
	EgressClientsPath   = "/clients/"
	EgressClientAddress = "address"
)
