// Package nodetemplate selects the node's NodeNetworkTemplate in node mode. It watches all templates and the labels of
// the node's own Node, and keeps the last choice in a file, so that a daemon that starts while the API
// server is unreachable creates no ENI with other settings than before.
//
//	follower.go  watches, and the choice
//	store.go     the stored choice
//
// Package internal/nodenetwork/template decides which template applies, and what its settings are.
package nodetemplate

// berthd's permissions in the Kubernetes API for templates.
//
// +kubebuilder:rbac:groups=berth.dev,resources=nodenetworktemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/nodetemplate/berthd
