// Package nodenetworksupplier supplies a node's addresses in operator mode: from the
// NodeNetwork object of the node's name, which the operator fills. The addresses
// are owned, and handed to pods, by internal/source/enisource.
//
//	supplier.go  what it is made of, and its one loop
//	follow.go    watching the object
//	targets.go   what the object asks for
//	handshake.go giving addresses back
//	report.go    telling who uses what
//	object.go    making the object, and replacing a stale one
//	spec.go      the object's spec from berthd's settings
//	why.go       why pods wait in vain
//	client.go    requests to the API server
//
// No ADD or DEL waits for the API server: all of this happens beside them.
package nodenetworksupplier

// What berthd may do in the Kubernetes API. An admission policy narrows it to
// the object of its own node (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

//go:generate controller-gen rbac:roleName=berthd paths=.;../../node/podevents output:rbac:dir=../../../deploy/chart/files/rbac/operator/berthd
