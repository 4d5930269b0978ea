package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "berth.dev", Version: "v1alpha1"}

// The field owners under which Berth's programs apply fields (Kubernetes documentation,
// "Server-Side Apply", managers).
const (
	OwnerDaemon   = "berthd"
	OwnerOperator = "berth-operator"
	// OwnerOperatorClients is the operator's field owner for the counts of clients in the status of
	// an Egress. The operator applies the rest of that status separately.
	OwnerOperatorClients = "berth-operator-clients"
)

// AddToScheme registers the kinds with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&NodeNetwork{}, &NodeNetworkList{},
		&NodeNetworkTemplate{}, &NodeNetworkTemplateList{},
		&AddressPool{}, &AddressPoolList{},
		&AddressBlock{}, &AddressBlockList{},
		&BlockRequest{}, &BlockRequestList{},
		&VPC{}, &VPCList{},
		&PodNIC{}, &PodNICList{},
		&NICPolicy{}, &NICPolicyList{},
		&Egress{}, &EgressList{},
		&EgressClient{}, &EgressClientList{},
		&EgressClientSlice{}, &EgressClientSliceList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
