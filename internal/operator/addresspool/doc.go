// Package addresspool is the operator's side of address pools (as in Coil's design): it
// accepts pools, cuts them into blocks for the nodes that ask, and releases
// blocks that outlived their pool or their node.
//
//	controller.go   the controllers: what each watches and caches, and which parts work together
//	inherited.go    the blocks that the previous leader made last
//	allocator.go    which blocks of each pool are allocated
//	pending.go      requests without an answer: which gets which block, and which wait
//	requests.go     a request: a block, or the reason why not
//	admission.go    whether a node may have another block
//	quota.go        how many blocks a node may have: a decision
//	pools.go        a pool: opened, closed, deleted
//	acceptance.go   accepting the subnets of a pool
//	layout.go       which subnets of which pool may be cut: a decision
//	status.go       conditions and Events of a pool, and the metrics
//	nodes.go        a node: whether it has given up its blocks, and their release
//	withholding.go  keeping addresses of Nodes and Services from pods
//	occupied.go     which addresses these are: decisions
//
// A block's name is its pool's and its index, so that the API server refuses a
// second owner even to an operator that is wrong. One with a stale cache, or a
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
