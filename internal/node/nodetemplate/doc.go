// Package nodetemplate chooses in node mode the NodeNetworkTemplate of the node. It follows all templates and the labels of
// the node's own Node at the API server, and keeps the last choice in a file, so that a daemon that starts while the API
// server is away creates no ENI with other settings than before.
//
//	follower.go  what is watched, and the choice
//	store.go     the choice that outlives the daemon
//
// Package internal/nodenetwork/template decides which template is chosen, and what its settings are.
package nodetemplate

// What berthd may do in the Kubernetes API for it.
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworktemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/nodetemplate/berthd
