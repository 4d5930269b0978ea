package providers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
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

// What changes at the provider is seen after the interval, and told to others; else it is
// quiet: NICs that come and go are counted, and no call is made for them.
func TestQuiet(t *testing.T) {
	b := newBed(t, Options{})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	before := len(b.cloud.HTTP.Calls())
	for i := range 20 {
		b.nic("blue", fmt.Sprintf("n-%d", i))
	}
	b.until("blue", "counts", controllers.If(func(v *v1alpha1.VPC) bool { return v.Status.NICs == 20 }))
	if n := len(b.cloud.HTTP.Calls()) - before; n > 3 { // one more look may be due
		t.Errorf("%d calls for nothing: %+v", n, b.cloud.HTTP.Calls()[before:])
	}
	events := &eventsv1.EventList{}
	harness.OK(t, b.client.List(t.Context(), events))
	var reasons []string
	for _, e := range events.Items {
		if e.Regarding.Kind == "VPC" {
			reasons = append(reasons, e.Type+" "+e.Reason)
		}
	}
	if !slices.Equal(reasons, []string{"Normal Ready"}) {
		t.Errorf("events %q", reasons)
	}
}

func TestInterval(t *testing.T) {
	b := newBed(t, Options{Interval: 200 * time.Millisecond})
	b.secret("neutron", password())
	b.vpc("blue")
	b.ready("blue")
	told := make(chan string, 100)
	b.vpcs.Networks().Changed(func(vpc string) { told <- vpc })
	b.cloud.AddSubnet(neutronfake.Subnet{Name: "more", Network: b.blue.ID, CIDR: netip.MustParsePrefix("192.168.1.0/24")})
	b.until("blue", "has the subnet", controllers.If(func(v *v1alpha1.VPC) bool { return len(v.Status.Subnets) == 2 }))
	if vpc := <-told; vpc != "blue" {
		t.Errorf("told of %s", vpc)
	}
	if o, err := b.vpcs.Networks().Of("blue"); err != nil || len(o.Network.Subnets) != 2 {
		t.Errorf("%+v, %v", o.Network, err)
	}
}
