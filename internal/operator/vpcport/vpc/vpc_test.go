package vpc

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

// A VPC is ready with what Neutron says of its network, and open for others.
func TestReady(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	v := b.ready("blue")
	conditions := map[string]string{}
	for _, c := range v.Status.Conditions {
		conditions[c.Type] = string(c.Status) + " " + c.Reason
	}
	if diff := cmp.Diff(map[string]string{
		"Ready": "True Ready", "Reachable": "True Answers", "CredentialsAccepted": "True Accepted", "NetworkFound": "True Found",
	}, conditions); diff != "" {
		t.Error(diff)
	}
	v.Status.Conditions = nil
	if diff := cmp.Diff(v1alpha1.VPCStatus{
		NetworkID: b.blue.ID, ProjectID: "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930", MTU: 1442,
		Subnets: []v1alpha1.VPCSubnet{{ID: b.web.ID, Name: "web", CIDR: "192.168.0.0/24", Gateway: "192.168.0.1"}},
	}, v.Status); diff != "" {
		t.Error(diff)
	}
	o, err := b.vpcs.Networks().Of("blue")
	if err != nil || o.Network.ID != b.blue.ID || o.Spec.Network != "blue" {
		t.Fatalf("%+v, %v", o, err)
	}
	made, err := o.Provider.Create(t.Context(), []vpcport.NewPort{{NetworkID: o.Network.ID, Device: vpcport.Device("test", "u-1")}})
	if err != nil || len(made) != 1 {
		t.Errorf("a port: %+v, %v", made, err)
	}
	if _, err := b.vpcs.Networks().Of("red"); err == nil {
		t.Error("a VPC that there is not is open")
	}
}
