// Package callers has the API server ask the webhook about pods of certain namespaces: those
// that have NICs of a VPC of EC2 by their namespace alone, and those of namespaces with
// policies that may select them. Neither a webhook's conditions nor its selectors see an
// annotation of a namespace or its policies, so the operator that leads names those namespaces
// in the chart's MutatingWebhookConfiguration. Pods of others never wait for the webhook.
//
//	namespaces.go  which namespaces, and how a webhook names them: decisions
//	controller.go  writing it
//	asked.go       what the configuration says now, for who tells of it
//
// What else the operator writes there is whom the API server trusts (package webhook).
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package callers

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../../deploy/chart/files/rbac/callers/berth-operator
