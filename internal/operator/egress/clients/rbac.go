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
