// Package clients is the operator's side of pods that use Egresses: it decides which pods
// are clients of which, and writes that to EgressClients for their nodes, and to
// EgressClientSlices for the gateways.
//
// Pods, Namespaces, Egresses and EgressClients are read from the cache. What follows from them for
// each pod is kept in the state, from which slices are written. An event of one pod leads to work
// for that pod, for the pods that have or claim its addresses, and for one slice of each of its
// Egresses.
//
//	controller.go  the controllers, and which events reconcile what, and what the cache keeps
//	reader.go      what is true of a pod: its decision, its addresses, who else claims them
//	state.go       what is known of all Egresses and their clients
//	pods.go        one pod: its EgressClient
//	egresses.go    one Egress: its slices
//	status.go      conditions of Egresses and EgressClients, and metrics
package clients

// What the operator does for clients of Egresses. EgressClients and Events are in the
// namespaces of pods, slices in those of Egresses.
//
// +kubebuilder:rbac:groups=berth.dev,resources=egresses,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=egresses/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclients,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=egressclients/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclientslices,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=pods;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
