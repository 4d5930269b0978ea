package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of everything in this package.
var GroupVersion = schema.GroupVersion{Group: "berth.dev", Version: "v1alpha1"}

// The field owners with which Berth's programs write (Kubernetes documentation,
// "Server-Side Apply", managers).
const (
	OwnerDaemon   = "berthd"
	OwnerOperator = "berth-operator"
	// OwnerOperatorClients is the operator's too, for what it says of an Egress's clients in
	// the Egress's status, beside what it says of gateways.
	OwnerOperatorClients = "berth-operator-clients"
)

// AddToScheme makes the kinds known to a scheme.
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
