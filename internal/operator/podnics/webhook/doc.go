// Package webhook judges pods that ask for NICs, and PodNICs, when they are made or
// edited: what the API server's own policies cannot, since it takes reading the
// annotation or the VPC. It says what the controller would say later (internal/nicrequest).
// Every operator serves it, and pods are admitted while none does.
//
// Where nodes have trunks of EC2 it also has pods ask the scheduler for branch interfaces.
// In namespaces with policies it has pods ask for the NIC of the one that selects them; of
// those no pod passes without an answer.
//
//	judge.go     requests of the API server, and answers
//	ask.go       pods that are made to ask for branch interfaces
//	choose.go    pods that are made to ask for the NIC of a policy
//	request.go   for how many one does, and how: decisions
//	authority.go certificates of its own authority
//	rotation.go  when there is a new authority, and which one signs
//	keeper.go    the authorities' Secret, and whom the API server trusts
//	clients.go   who may ask
//	setup.go     serving
//	metrics.go   the metrics
//
// The chart makes the Secret, without data, and the ValidatingWebhookConfiguration. The
// operator may fill in these two and no other, and with branch interfaces the
// MutatingWebhookConfiguration that package callers is about.
//
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=secrets,resourceNames=berth-operator-webhook,verbs=get;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=default,resources=endpointslices,resourceNames=kubernetes,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=berth-ports,verbs=get;patch
package webhook

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/webhook/berth-operator
