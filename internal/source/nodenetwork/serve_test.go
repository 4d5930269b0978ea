package nodenetwork

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/api/v1alpha1"
)

// The daemon makes its object, serves what the operator puts there, and reports
// who uses what, under the generated role.
func TestServesFromTheObject(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.appears("the daemon makes the object", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	if err := m.Ready(); err == nil {
		t.Error("ready without an address")
	}
	m.operator(give(10, 17))
	l := m.add(1)
	if l.ENI != eth1 || l.Uplink != 1 || l.IPv4 != address(10) {
		t.Errorf("the pod got %+v", l)
	}
	if err := m.Ready(); err != nil {
		t.Error(err)
	}
	o := m.reports(1)
	want := v1alpha1.IPAMStatus{
		Used:      map[string]v1alpha1.UsedAddress{"10.0.0.10": {Owner: "ns/pod1", UID: "uid-1", Resource: eth1}},
		UsedCount: 1, InstanceID: instance,
	}
	if diff := cmp.Diff(want, o.Status.IPAM); diff != "" {
		t.Error(diff)
	}
}
