// Package nicpolicy reads NICPolicies, and SecurityGroupPolicies of the Amazon VPC CNI if their CRD is installed, for the webhook
// that applies them to pods (package webhook). It also publishes in the status of NICPolicies whether they are in force. Package
// nicrequest decides which policy applies to a pod.
//
//	policies.go    reading both kinds
//	foreign.go     SecurityGroupPolicies, whose CRD may be installed and removed at any time
//	controller.go  the status of NICPolicies, and whether one is in force
//
// +kubebuilder:rbac:groups=berth.dev,resources=nicpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=nicpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=vpcresources.k8s.aws,resources=securitygrouppolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get
package nicpolicy
