// Package nicpolicy is the operator's side of NICPolicies: it reads them, and
// SecurityGroupPolicies of the Amazon VPC CNI where their kind is installed, for the webhook
// that has pods ask for what they say (package webhook), and tells in their status whether
// they are in force.
//
//	policies.go    reading both kinds
//	foreign.go     SecurityGroupPolicies, whose kind may come and go
//	controller.go  the status of NICPolicies
//	verdict.go     whether one is in force: a decision
//
// Which policy counts for a pod, package podnic decides.
//
// +kubebuilder:rbac:groups=berth.dev,resources=nicpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=nicpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=vpcresources.k8s.aws,resources=securitygrouppolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get
package nicpolicy
