// Package addresspool is the operator's side of address pools (as in Coil's design). It accepts
// pools, cuts them into blocks for the nodes that request them, and releases blocks that outlived
// their pool or their node.
//
//	controller.go   setup of the controllers: what each watches and caches
//	inherited.go    the last blocks of the previous leader
//	allocator.go    the allocated blocks of each pool
//	pending.go      unanswered requests: their blocks and their order
//	requests.go     answers a request with a block, or with the reason for a refusal
//	admission.go    whether a node may have another block
//	quota.go        how many blocks a node may have (a pure decision)
//	pools.go        opening, closing and deletion of a pool
//	acceptance.go   accepting the subnets of a pool
//	layout.go       which subnets of which pool may be cut (a pure decision)
//	status.go       conditions and Events of a pool, and the metrics
//	nodes.go        whether a node has given up its blocks, and their release
//	withholding.go  withholding addresses of Nodes and Services from pods
//	occupied.go     which addresses are withheld (pure decisions)
//
// A block is named after its pool and its index, so the API server rejects a second owner even if
// an operator is wrong. An operator with a stale cache, or a replaced leader, finds the name taken
// and moves on to the next index.
package addresspool

// Permissions in the Kubernetes API. An admission policy restricts them to fields
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
