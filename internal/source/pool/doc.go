// Package pool supplies a node's pod addresses from address pools: blocks of them
// that the operator gives this node, as AddressBlock objects (Coil's design).
//
// Decisions are made by a ledger, which is values in memory and does no I/O:
//
//	ledger.go    what is known: pools, namespaces, and what that changes
//	blocks.go    the life of a block on this node
//	alloc.go     handing out addresses, and taking them back
//	choose.go    which pool a pod gets its address from
//	withhold.go  addresses of blocks that Nodes and Services have
//	pair.go      the two addresses of a dual-stack pod
//	demand.go    how many blocks a pool needs here, and which go back
//	requests.go  BlockRequests: which are there, and what they came to
//	plan.go      what is to be asked of the API server
//	why.go       why pods get no address
//
// The Source owns the ledger's lock and has the edges:
//
//	source.go    what the daemon calls
//	follow.go    what is watched at the API server
//	act.go       what is asked of it, each request beside the others
//	renew.go     saying that this node lives while its Node is missing
//	commit.go    the file, then the data path, and only then the pods
//	store.go     the file
//	snapshot.go  what introspection and metrics see
//	detail.go    what of it no other source has
//	metrics.go   the metrics, and what counts requests
//
// No ADD or DEL waits for a request that was not made for its pool, and none is
// made under the lock.
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
