// Package nodenetworksupplier supplies a node's addresses in operator mode, from the
// NodeNetwork object of the node's name, which the operator fills. The addresses
// are owned, and handed to pods, by internal/source/enisource.
//
//	supplier.go  what it is made of, and its one loop
//	observed.go  the object as last seen, and why pods do not get addresses from it
//	handshake.go releasing addresses
//	report.go    reporting who uses which address
//	object.go    creating the object, and replacing one of another instance
//
// No ADD or DEL waits for the API server.
package nodenetworksupplier

// What berthd may do in the Kubernetes API. An admission policy narrows it to
// the object of its own node (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

//go:generate controller-gen rbac:roleName=berthd paths=.;../../node/podevents output:rbac:dir=../../../deploy/chart/files/rbac/operator/berthd
