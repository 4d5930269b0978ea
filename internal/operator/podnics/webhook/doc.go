// Package webhook is the admission webhook of pods and PodNICs. It rejects requests for NICs that cannot be fulfilled, as far as the API
// server's own policies cannot tell because the annotation or the VPC must be read. Its verdicts are those that the controller makes later
// (package nicrequest). Every operator serves it, and pods are admitted while no operator does.
//
// On nodes with EC2 trunks it also adds requests for branch interfaces to pods, for the scheduler. In namespaces with NICPolicies it adds
// the NIC of the policy that selects a pod; these pods are rejected while the webhook does not answer.
//
//	review.go    validation, and requests for branch interfaces
//	choose.go    NICs of policies
//	request.go   how many branch interfaces a pod requests (pure decisions)
//	authority.go the webhook's own certificate authorities, their rotation, and certificates
//	keeper.go    the Secret with the authorities, and the API server's trust in them
//	clients.go   which clients are answered
//	setup.go     serving
//	metrics.go   the metrics
//
// The chart creates the Secret, without data, and the webhook configurations. The operator may write only these objects, each by its name;
// package callers also writes the MutatingWebhookConfiguration.
//
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=secrets,resourceNames=berth-operator-webhook,verbs=get;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=default,resources=endpointslices,resourceNames=kubernetes,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package webhook

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/webhook/berth-operator
