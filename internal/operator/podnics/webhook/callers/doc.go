// Package callers lists in the chart's MutatingWebhookConfiguration the namespaces about whose pods the API server
// asks the webhook: those whose annotation names an EC2 VPC, and those with NICPolicies. Neither the conditions of a
// webhook nor its selectors see a namespace's annotations or policies, so that the leader writes their names. Pods of
// other namespaces do not wait for the webhook.
//
// The CA bundle is written by package webhook.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package callers

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../../deploy/chart/files/rbac/callers/berth-operator
