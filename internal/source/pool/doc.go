// Package pool supplies a node's pod addresses from address pools, in blocks that the operator assigns to this node as
// AddressBlock objects (Coil's design).
//
// Decisions are made on values in memory, without I/O:
//
//	holdings.go  the node's blocks and leases, and their transitions
//	pools.go     the pools, and the selection of a pod's pool
//	blocks.go    the life cycle of a block on this node
//	withhold.go  addresses of blocks that Nodes and Services use
//	leases.go    leases of addresses
//	requests.go  BlockRequests, and their results
//	demand.go    how many blocks a pool needs on the node, and which to release
//	plan.go      the requests to make to the API server
//	why.go       reasons why pods get no address
//
// Source owns the lock of the holdings. The rest does I/O without it:
//
//	source.go    the interface to the daemon
//	follow.go    watches of the API server
//	act.go       concurrent requests to the API server
//	renew.go     claiming blocks while the Node is missing
//	commit.go    commits to the file and the data path, before pods get addresses
//	store.go     the file
//	snapshot.go  introspection and metrics, with the details of this source
//
// An ADD or DEL waits only for requests made for its pool, and no request is made under the lock.
package pool

// berthd's permissions in the Kubernetes API. An admission policy restricts them to
// objects of its own node (deploy/chart/templates/admission/pools.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=addresspools,verbs=list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=addressblocks,verbs=get;list;watch;delete;patch
// +kubebuilder:rbac:groups=berth.dev,resources=addressblocks/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=blockrequests,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=list;watch

//go:generate controller-gen rbac:roleName=berthd paths=.;../../node/podevents output:rbac:dir=../../../deploy/chart/files/rbac/pool/berthd
