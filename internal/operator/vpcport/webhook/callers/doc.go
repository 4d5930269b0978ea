// Package callers has the API server ask the webhook about pods that have NICs of a VPC of
// EC2 by their namespace alone. Neither a webhook's conditions nor its selectors see an
// annotation of a namespace, so the operator that leads names those namespaces in the
// chart's MutatingWebhookConfiguration. Pods of others never wait for the webhook.
//
//	namespaces.go  which namespaces: a decision
//	controller.go  writing it
//
// What else the operator writes there is whom the API server trusts (package webhook).
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package callers

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../../deploy/chart/files/rbac/callers/berth-operator
