package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Egress is a set of gateway pods that connect client pods to networks outside the cluster. Clients
// send packets for the destinations through a Foo-over-UDP tunnel to a gateway, which replaces the
// source address with its own (the design of Coil v2, "On-demand NAT for egress traffics"). A pod
// becomes a client by naming the Egress in the annotation egress.berth.dev/NAMESPACE, or by
// matching spec.clients.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=egresses,shortName=begress,categories=berth
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 52",fieldPath=".metadata",message="metadata.name must begin with a letter and have at most 52 lower-case letters, digits and hyphens: the Service and the pods are named after it"
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

// EgressSpec defines the destinations, the gateways and the clients of an Egress. Written by a
// person; replicas may also be set by an autoscaler.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sessionAffinityConfig) || self.sessionAffinity == 'ClientIP'",fieldPath=".sessionAffinityConfig",message="sessionAffinityConfig requires sessionAffinity ClientIP"
type EgressSpec struct {
	// Destinations are the networks, in CIDR notation, that clients reach through the gateways. The
	// gateways must have an address of each family used here.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(d, isCIDR(d) && string(cidr(d).masked()) == d)",message="destinations must be CIDRs without host bits, such as 203.0.113.0/24, 0.0.0.0/0 or 2001:db8::/32"
	Destinations []string `json:"destinations"`

	// Replicas is the number of gateways.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Strategy is how gateways are replaced, as in a Deployment. If unset, the defaults of a
	// Deployment apply.
	// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type in ['Recreate', 'RollingUpdate']",fieldPath=".type",message="type must be Recreate or RollingUpdate"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.type) || self.type == 'RollingUpdate'",fieldPath=".rollingUpdate",message="rollingUpdate requires type RollingUpdate"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || (type(self.rollingUpdate.maxSurge) == int ? int(self.rollingUpdate.maxSurge) >= 0 : string(self.rollingUpdate.maxSurge).matches('^[0-9]+%$'))",fieldPath=".rollingUpdate.maxSurge",message="maxSurge must be a number of pods, or a percentage such as 25%"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxUnavailable) || (type(self.rollingUpdate.maxUnavailable) == int ? int(self.rollingUpdate.maxUnavailable) >= 0 : string(self.rollingUpdate.maxUnavailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".rollingUpdate.maxUnavailable",message="maxUnavailable must be a number of pods, or a percentage from 0% to 100%"
	// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || !has(self.rollingUpdate.maxUnavailable) || !(string(self.rollingUpdate.maxSurge) in ['0', '0%']) || !(string(self.rollingUpdate.maxUnavailable) in ['0', '0%'])",fieldPath=".rollingUpdate",message="maxSurge and maxUnavailable cannot both be 0: no gateway could ever be replaced"
	// +optional
	Strategy *appsv1.DeploymentStrategy `json:"strategy,omitempty"`

	// Template adds settings to the gateways' pods.
	// +optional
	Template *EgressPodTemplate `json:"template,omitempty"`

	// SessionAffinity selects whether all connections of a client use the same gateway (ClientIP),
	// or each connection may use a different one (None).
	// +kubebuilder:validation:Enum=ClientIP;None
	// +kubebuilder:default=ClientIP
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`

	// SessionAffinityConfig is the session affinity of the Service: how many seconds a client keeps
	// its gateway.
	// +kubebuilder:validation:XValidation:rule="has(self.clientIP) && has(self.clientIP.timeoutSeconds) && self.clientIP.timeoutSeconds >= 1 && self.clientIP.timeoutSeconds <= 86400",fieldPath=".clientIP",message="clientIP.timeoutSeconds must be from 1 to 86400"
	// +optional
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`

	// FouSourcePortAuto derives the UDP source port of the tunnels from the addresses and ports of
	// each connection, so that connections of one client may take different paths and, through the
	// Service, different gateways. Otherwise the source port is the Foo-over-UDP port.
	// +optional
	FouSourcePortAuto bool `json:"fouSourcePortAuto,omitempty"`

	// PodDisruptionBudget is the disruption budget of the gateways. If unset, there is none.
	// +optional
	PodDisruptionBudget *EgressPodDisruptionBudget `json:"podDisruptionBudget,omitempty"`

	// TunnelTo is the remote end of clients' tunnels: the gateways themselves (Gateways), or the
	// address of the Service (Service), which kube-proxy or its replacement forwards to a gateway.
	// +kubebuilder:default=Gateways
	// +optional
	TunnelTo EgressTunnelTo `json:"tunnelTo,omitempty"`

	// Clients selects pods that use this Egress without an annotation. If unset, no pods are
	// selected. Pods of another namespace are selected only if that namespace consents with the
	// annotation berth.dev/egress-selectable-from, or if the Egress's namespace has the label
	// berth.dev/egress-may-select: "true". Pods of system namespaces are never selected. In a
	// namespace without that label, only the 32 oldest Egresses select pods.
	// +optional
	Clients *EgressClientSelector `json:"clients,omitempty"`

	// AllowedNamespaces are the namespaces, in addition to its own, whose pods may name this Egress
	// in an annotation. Pods selected by clients need no entry here.
	// +optional
	AllowedNamespaces *VPCNamespaces `json:"allowedNamespaces,omitempty"`

	// OriginatingOnly sends only connections that the client opens through a gateway. Replies to
	// connections from outside take the route that they would take without the Egress.
	// +optional
	OriginatingOnly bool `json:"originatingOnly,omitempty"`
}

// EgressTunnelTo is the remote end of clients' tunnels.
//
// +kubebuilder:validation:Enum=Gateways;Service
type EgressTunnelTo string

// The remote ends of tunnels.
const (
	TunnelToGateways EgressTunnelTo = "Gateways"
	TunnelToService  EgressTunnelTo = "Service"
)

// EgressClientSelector selects pods by the labels of their namespace and their own labels. A
// selector that is not set matches everything; at least one must be set.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaceSelector) || has(self.podSelector)",message="clients must have a namespaceSelector, a podSelector or both"
type EgressClientSelector struct {
	// NamespaceSelector selects namespaces. If unset, only the Egress's own; an empty selector
	// matches all.
	// +optional
	NamespaceSelector *LabelSelector `json:"namespaceSelector,omitempty"`

	// PodSelector selects pods in these namespaces. If unset or empty, it matches all.
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`
}

// EgressPodTemplate adds settings to the gateways' pods.
type EgressPodTemplate struct {
	// Metadata are labels and annotations.
	// +optional
	Metadata EgressPodMetadata `json:"metadata,omitzero"`

	// Spec is a partial PodSpec: for example affinity, tolerations, nodeSelector,
	// priorityClassName, terminationGracePeriodSeconds, or the resources of the container named
	// egress.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +optional
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// EgressPodMetadata are labels and annotations of the gateways' pods.
type EgressPodMetadata struct {
	// Labels are added to the labels that Berth sets. Labels in the domain berth.dev are reserved.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))",message="labels must have valid keys, such as example.com/name"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('berth.dev/') && !k.contains('.berth.dev/'))",message="labels in the domain berth.dev are reserved for Berth"
	// +optional
	Labels map[string]EgressPodLabel `json:"labels,omitempty"`

	// Annotations are added to the annotations that Berth sets.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$'))",message="annotations must have valid keys, such as example.com/name"
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// EgressPodLabel is the value of a label (Kubernetes documentation, "Labels and
// Selectors").
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type EgressPodLabel string

// EgressPodDisruptionBudget limits how many gateways may be evicted at once.
//
// +kubebuilder:validation:XValidation:rule="has(self.minAvailable) != has(self.maxUnavailable)",message="podDisruptionBudget must have either minAvailable or maxUnavailable, but not both"
// +kubebuilder:validation:XValidation:rule="!has(self.minAvailable) || (type(self.minAvailable) == int ? int(self.minAvailable) >= 0 : string(self.minAvailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".minAvailable",message="minAvailable must be a number of pods, or a percentage from 0% to 100%"
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || (type(self.maxUnavailable) == int ? int(self.maxUnavailable) >= 0 : string(self.maxUnavailable).matches('^([0-9]|[1-9][0-9]|100)%$'))",fieldPath=".maxUnavailable",message="maxUnavailable must be a number of pods, or a percentage from 0% to 100%"
type EgressPodDisruptionBudget struct {
	// MinAvailable is the number of gateways that must stay available.
	// +optional
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`

	// MaxUnavailable is the number of gateways that may be unavailable.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// EgressStatus is the observed state of the Egress. Written by the operator.
type EgressStatus struct {
	// ObservedGeneration is the generation of the spec that this status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Replicas is the current number of gateway pods, for autoscalers.
	// +optional
	Replicas int32 `json:"replicas"`

	// Selector selects the gateway pods, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// ReadyGateways is the number of gateways that accept new connections.
	// +optional
	ReadyGateways int32 `json:"readyGateways"`

	// Clients is the number of pods that the gateways serve. RefusedClients is the number of pods
	// that would be clients but are not allowed to; their EgressClients say why.
	// +optional
	Clients int32 `json:"clients"`
	// +optional
	RefusedClients int32 `json:"refusedClients,omitempty"`

	// ServiceIPs are the addresses of the Service.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +optional
	ServiceIPs []string `json:"serviceIPs,omitempty"`

	// Gateways are the gateways to which nodes set up tunnels: gateways that are ready, terminating
	// gateways that still serve connections, and gateways whose container is restarting.
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
	// Name is the name of the pod.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the UID of the pod.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`

	// Addresses are the addresses of the pod, one per family.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses"`

	// Ending marks a gateway that gets no new connections but still serves existing ones: it is
	// terminating, or its container is restarting while other gateways are ready.
	// +optional
	Ending bool `json:"ending,omitempty"`
}

// The types of an Egress's conditions.
const (
	ConditionAvailable    = "Available"    // a gateway is ready
	ConditionServiceReady = "ServiceReady" // the Service and the other objects of the Egress are as desired
	ConditionClientsReady = "ClientsReady" // no pod or namespace is refused as a client, and no client is waiting
)

// The reasons of Available and ServiceReady.
const (
	EgressGatewaysReady   = "GatewaysReady"   // Available: gateways accept connections to all destinations
	EgressNoReplicas      = "NoReplicas"      // Available: spec.replicas is 0
	EgressNoGateways      = "NoGateways"      // Available: no gateway is ready
	EgressForeignPods     = "ForeignPods"     // Available: the Service selects pods that are not gateways
	EgressFamilyMissing   = "FamilyMissing"   // Available: the gateways have no address of a family that destinations use
	EgressApplied         = "Applied"         // ServiceReady: all objects are applied
	EgressInvalidTemplate = "InvalidTemplate" // ServiceReady: spec.template is not a valid pod template
	EgressNameTaken       = "NameTaken"       // ServiceReady: an object of that name does not belong to the Egress
	EgressRefused         = "Refused"         // ServiceReady: the API server rejected an object
	EgressPodsRefused     = "PodsRefused"     // ServiceReady: the API server rejected the gateways' pods
)

const (
	// AnnotationEgressPrefix, followed by the name of a namespace, is the key of a pod annotation
	// that lists Egresses of that namespace, separated by commas.
	AnnotationEgressPrefix = "egress.berth.dev/"
	// AnnotationCoilEgressPrefix is Coil's prefix of the same annotation. It counts for Egresses with AnnotationCoilClients.
	AnnotationCoilEgressPrefix = "egress.coil.cybozu.com/"
	// AnnotationCoilClients of an Egress, with the value "true", makes pods that name the Egress with Coil's annotation its
	// clients. A migration from Coil sets it.
	AnnotationCoilClients = "berth.dev/coil-clients"
	// AnnotationCoilEgress of an Egress is the UID of Coil's Egress that it replaces. A migration from Coil sets it, and
	// removes it when it ends: until then, clients on nodes that have not moved use Coil's gateways.
	AnnotationCoilEgress = "migrate.berth.dev/coil-egress"
	// LabelEgress is the label that holds the name of the Egress that an object belongs to. The
	// Egress is in the namespace of the object.
	LabelEgress = "egress.berth.dev/name"
	// AnnotationEgressGateway, with the value "true", marks a pod as a gateway for the node's
	// daemon, which then enables packet forwarding in the pod's network namespace. An unprivileged
	// pod cannot do so itself. The operator sets it.
	AnnotationEgressGateway = "berth.dev/egress-gateway"
	// AnnotationEgressSelectableFrom on a Namespace is its consent: a comma-separated list of
	// namespaces whose Egresses may select its pods (spec.clients), or "*" for all. Roles within a
	// namespace do not grant the right to write it.
	AnnotationEgressSelectableFrom = "berth.dev/egress-selectable-from"
	// LabelEgressMaySelect, with the value "true" on a Namespace, is set by an administrator. It
	// lets the Egresses of that namespace select pods of all other namespaces except system
	// namespaces, without their consent.
	LabelEgressMaySelect = "berth.dev/egress-may-select"
)

// EgressPort is the default Foo-over-UDP port of gateways and clients (the port of the source
// document). Settings of the operator and the daemons may override it.
const EgressPort = 5555

// EgressHealthPort is the TCP port on which a gateway answers probes from the kubelet and from the
// daemons whose pods use it, and serves its metrics.
const EgressHealthPort = 61690

// A gateway reports over HTTP at EgressHealthPort whether it serves a pod: GET EgressClientsPath
// plus the UID of the pod, with one parameter EgressClientAddress for each address of the pod. It
// answers 200 once it serves the pod.
const (
	EgressClientsPath   = "/clients/"
	EgressClientAddress = "address"
)
