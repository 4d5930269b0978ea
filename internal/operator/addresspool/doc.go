// Package addresspool is the operator's side of address pools (as in Coil's design): it
// accepts pools, cuts them into blocks for the nodes that ask, and releases
// blocks that outlived their pool or their node.
//
//	controller.go  the controllers: what each watches and which workers it has
//	cache.go       what is kept in memory of each kind
//	inherit.go     what the leader before this one left
//	book.go        which blocks of each pool are taken
//	entry.go       which request gets which block, and who waits for one
//	admit.go       whether its node may have a block more
//	quota.go       how many blocks a node may have: a decision
//	request.go     a request: a block cut, or the reason why not
//	accept.go      which subnets of which pool may be cut: a decision
//	grant.go       accepting them
//	pool.go        a pool: opened, closed, deleted
//	status.go      what people see of it
//	liveness.go    whether a node has given up its blocks: a decision
//	withhold.go    which addresses are others': decisions
//	occupied.go    which addresses Nodes and Services have, and telling blocks
//	metrics.go     the metrics, and what counts requests
//	node.go        a node: its blocks and requests released
//
// A block's name is its pool's and its index, so that the API server refuses a
// second owner whatever an operator believes: one with a stale cache, or a
// leader that was replaced, finds the name taken and goes on to the next index.
package addresspool

// What it may do in the Kubernetes API. An admission policy narrows it to fields
// (deploy/chart/templates/admission/pools.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=addresspools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=berth.dev,resources=addresspools/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=addresspools/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=addressblocks,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=blockrequests,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=blockrequests/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,namespace=default,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. output:rbac:dir=../../../deploy/chart/files/rbac/pool/berth-operator
