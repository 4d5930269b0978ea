// Package nodeenis connects NodeNetwork objects with the fleet, which manages the ENIs of their nodes:
// it passes the settings of each object to the fleet, and writes what the fleet observes and obtains
// into the object.
//
//	controller.go  reconciliation of one object, and what the cache keeps
//	node.go        one node as the fleet sees it (fleet.Node)
//	state.go       state of a node, the fleet's last report, and the node's timers
//	configure.go   the settings that result from the object and the template for its node
//	identity.go    whether an object's instance is its Node's
//	usage.go       how pods use the addresses, and pods that wait before their ADDs arrive
//	handshake.go   addresses being released, and the fleet's side of the release handshake
//	mark.go        marking addresses before EC2 is asked to unassign them, for all operators to see
//	desired.go     the desired content of the object
//	write.go       writing the object, and detecting other writers
//	conditions.go  conditions and Events, for users
//	deletion.go    deleting objects that outlived their node, and delaying objects recreated repeatedly
//	metrics.go     the metrics, and sums over all nodes
//
// # Fields and their writers
//
// The operator writes spec.ipam, status.eni and status.conditions, each by server-side apply; the daemon
// writes status.ipam. Every write of the operator is conditional on the version of the object that it is
// based on. After a conflict, the object is read again, and written only if spec.ipam is still what this
// operator saw or wrote last. Otherwise somebody else wrote it, such as a leader that has not noticed
// that it lost the lease: the fleet then lists EC2 before anything is published, and an address that the
// other writer took away is not published for longer than a listing of EC2 may be stale.
package nodeenis

// The operator's permissions for NodeNetworks, and for what it watches to manage them. An admission
// policy restricts them to the operator's own fields (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworktemplates,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=default,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. output:rbac:dir=../../../deploy/chart/files/rbac/operator/berth-operator
