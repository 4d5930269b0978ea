// Package callers lists in the chart's MutatingWebhookConfiguration the namespaces for whose pods the API server calls the webhook: those
// whose annotation names an EC2 VPC, and those with NICPolicies. A webhook's match conditions and selectors cannot see a namespace's
// annotations or policies, so the leader writes the names of these namespaces. Pods of other namespaces do not wait for the webhook.
//
// The CA bundle is written by package webhook.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package callers

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../../deploy/chart/files/rbac/callers/berth-operator
