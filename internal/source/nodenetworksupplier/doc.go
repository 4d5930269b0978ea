// Package nodenetworksupplier supplies a node's addresses in operator mode, from the
// NodeNetwork object with the node's name, which the operator fills.
// internal/source/enisource owns the addresses and assigns them to pods.
//
//	supplier.go  construction, and the main loop
//	observed.go  the object as last seen, and why pods get no addresses from it
//	handshake.go releasing addresses
//	report.go    reporting the use of addresses
//	object.go    creating the object, and replacing one of another instance
//
// No ADD or DEL waits for the API server.
package nodenetworksupplier

// berthd's permissions in the Kubernetes API. An admission policy restricts them to
// the object of its own node (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

//go:generate controller-gen rbac:roleName=berthd paths=.;../../node/podevents output:rbac:dir=../../../deploy/chart/files/rbac/operator/berthd
