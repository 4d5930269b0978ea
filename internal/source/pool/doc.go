// Package pool supplies a node's pod addresses from address pools: blocks of them that the operator gives this node, as
// AddressBlock objects (Coil's design).
//
// Decisions are made on values in memory, without I/O:
//
//	holdings.go  what the node has of its pools, and what happens to it
//	pools.go     the pools, and which of them a pod uses
//	blocks.go    the life of a block on this node
//	withhold.go  addresses of blocks that Nodes and Services have
//	leases.go    who has which address
//	requests.go  BlockRequests, and their results
//	demand.go    how many blocks a pool needs here, and which go back
//	plan.go      what is to be requested from the API server
//	why.go       why pods get no address
//
// Source owns the lock of the holdings. The rest does I/O without it:
//
//	source.go    what the daemon calls
//	follow.go    what is watched at the API server
//	act.go       requests to the API server, beside each other
//	renew.go     claiming blocks while the Node is missing
//	commit.go    the file, then the data path, and only then the pods
//	store.go     the file
//	snapshot.go  introspection and metrics, and what only this source has in them
//
// No ADD or DEL waits for a request that was not made for its pool, and none is made under the lock.
package pool

// What berthd may do in the Kubernetes API. An admission policy narrows it to
// what is its own node's (deploy/chart/templates/admission/pools.yaml).
//
// +kubebuilder:rbac:groups=berth.dev,resources=addresspools,verbs=list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=addressblocks,verbs=get;list;watch;delete;patch
// +kubebuilder:rbac:groups=berth.dev,resources=addressblocks/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=blockrequests,verbs=list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=list;watch

//go:generate controller-gen rbac:roleName=berthd paths=.;../../node/podevents output:rbac:dir=../../../deploy/chart/files/rbac/pool/berthd
