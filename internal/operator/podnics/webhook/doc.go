// Package webhook is the admission webhook of pods and PodNICs. It rejects those that ask for NICs which they
// cannot get, as far as the API server's own policies cannot tell: that takes reading the annotation or
// the VPC. Its verdicts are those of the controller later (package nicrequest). Every operator serves it,
// and pods are admitted while none does.
//
// On nodes with EC2 trunks it also adds requests for branch interfaces to pods, for the scheduler. In
// namespaces with NICPolicies it adds the NIC of the policy that selects a pod; these pods are rejected
// while it does not answer.
//
//	review.go    validation, and requests for branch interfaces
//	choose.go    NICs of policies
//	request.go   how many branch interfaces a pod requests: decisions
//	authority.go the webhook's own certificate authorities, their rotation, and certificates
//	keeper.go    the Secret with the authorities, and the API server's trust in them
//	clients.go   which clients are answered
//	setup.go     serving
//	metrics.go   the metrics
//
// The chart creates the Secret, without data, and the webhook configurations. The operator may write these
// objects only, each by its name; package callers writes the MutatingWebhookConfiguration too.
//
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=secrets,resourceNames=berth-operator-webhook,verbs=get;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=default,resources=endpointslices,resourceNames=kubernetes,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package webhook

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/webhook/berth-operator
