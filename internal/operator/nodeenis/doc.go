// Package nodeenis connects NodeNetwork objects with the fleet, which manages the ENIs of their
// nodes: it gives the fleet the settings of each object, and writes what the fleet
// observes and gets into the object.
//
//	controller.go  one object's event, what follows from it, and what the cache keeps
//	node.go        one node's side, as the fleet sees it (fleet.Node)
//	state.go       what is known of a node, what the fleet last reported, and the next of its timers
//	configure.go   the settings by an object and the template for its node
//	identity.go    whether an object's instance is its Node's
//	usage.go       how pods use the addresses, and pods that wait before their ADDs arrive
//	handshake.go   what is being released, and the fleet's side of that
//	mark.go        marking what EC2 is asked to unassign, for all operators to see
//	desired.go     what the object should say
//	write.go       writing it, and whether somebody else does
//	conditions.go  conditions and Events, for people
//	deletion.go    when an object has outlived its node, or is created again, over and over
//	metrics.go     the metrics, and sums over all nodes
//
// # Fields and their writers
//
// The operator writes spec.ipam, status.eni and status.conditions, each by
// server-side apply; the daemon writes status.ipam. Every write of the operator
// is conditional on the state of the object that it was decided on. After a conflict
// the object is read again, and written only if spec.ipam still is
// what this operator saw or wrote last. Otherwise somebody else wrote it, such
// as a leader that has not noticed its end: the fleet then lists EC2 before
// anything is published, and an address that the other one took away is not published
// for longer than a listing of EC2 may be stale.
package nodeenis

// The operator's rights for NodeNetworks, and for what it watches to manage them. An admission
// policy narrows them to the operator's own fields (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworktemplates,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=default,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. output:rbac:dir=../../../deploy/chart/files/rbac/operator/berth-operator
