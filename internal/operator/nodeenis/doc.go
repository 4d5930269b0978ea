// Package nodeenis stands between NodeNetwork objects and the fleet that
// works for their nodes' ENIs: it tells the fleet what each object asks for,
// and writes what the fleet finds and gets into the object.
//
//	controller.go  one object's event, and what follows from it
//	cache.go       what of the API server's objects is kept in memory
//	configure.go   what an object, and a template for its node, ask for
//	identity.go    whether an object's instance is its Node's
//	node.go        one node's side, as the fleet sees it (fleet.Node)
//	fleetstate.go  what the fleet last said of it, and what it begins with
//	timers.go      which of its parts have times of their own, and the next of them
//	state.go       which state of the object is the newest
//	ownership.go   whether somebody else writes it, and what follows
//	usage.go       what pods do with the addresses
//	handshake.go   what is on its way back to EC2
//	withdraw.go    the fleet's side of that: taking addresses back
//	mark.go        what is handed to EC2, for all operators to see
//	desired.go     what the object should say
//	write.go       writing it
//	conditions.go  how the node does, for people
//	demand.go      how long pods wait for addresses
//	pods.go        pods that wait, before their ADDs arrive
//	deletion.go    when an object has outlived its node
//	liveness.go    what tells whether the node still exists
//	metrics.go     the metrics, and what counts
//	totals.go      sums over all nodes
//	recreation.go  an object that is deleted and made again, over and over
//
// # Fields and their writers
//
// The operator writes spec.ipam, status.eni and status.conditions, each by
// server-side apply; the daemon writes status.ipam. Every write of the operator
// is conditional on the state of the object that it was decided on. If it is
// refused, the object is read again, and written only if spec.ipam still is
// what this operator saw or wrote last. Otherwise somebody else wrote it, such
// as a leader that has not noticed its end: the fleet then looks at the cloud
// before anything is published, and what the other took away stays away for
// longer than a listing of the cloud may be old.
package nodeenis

// What the operator may do with NodeNetworks, and with what it looks at to know
// when they are needed. An admission policy narrows it to the operator's own
// fields (deploy/chart/templates/admission/nodenetworks.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworks/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworktemplates,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=default,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. output:rbac:dir=../../../deploy/chart/files/rbac/operator/berth-operator
