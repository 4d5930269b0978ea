package podegress

import (
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
)

// A pod that another network made keeps the tunnels that it has from there until each of its Egresses allows it and has a
// gateway, and stays with Berth's gateways from then on.
func TestAdoptedPodsWaitForGateways(t *testing.T) {
	adopted := record(1)
	adopted.Adopted = &attachment.Adopted{From: "coil", HostLink: "veth1"}
	ending := gatewayNumber(1)
	ending.ending = true
	refusing := clientOf(1, useNamed("nat"))
	refusing.refused = []v1alpha1.EgressRefusal{{Namespace: "internet", Name: "web", Reason: v1alpha1.EgressNotFound, Named: true}}
	used := adopted
	used.Egress = &attachment.Egress{State: attachment.EgressSetUp, Egresses: []attachment.UsedEgress{{Namespace: "internet", Name: "nat", UID: string(useNamed("nat").uid)}}}
	for name, tt := range map[string]struct {
		rec    attachment.Record
		client egressClient
		egress egress
		change bool
	}{
		"a gateway":              {adopted, clientOf(1, useNamed("nat")), egressWith("nat", gatewayNumber(1)), true},
		"no gateway":             {adopted, clientOf(1, useNamed("nat")), egressWith("nat"), false},
		"a gateway that ends":    {adopted, clientOf(1, useNamed("nat")), egressWith("nat", ending), false},
		"another one is refused": {adopted, refusing, egressWith("nat", gatewayNumber(1)), false},
		"another Egress unknown": {adopted, clientOf(1, useNamed("nat"), useNamed("web")), egressWith("nat", gatewayNumber(1)), false},
		"no gateway any more":    {used, clientOf(1, useNamed("nat")), egressWith("nat"), true},
		"Berth's own pod":        {record(1), clientOf(1, useNamed("nat")), egressWith("nat"), true},
	} {
		b := known(tt.egress)
		b.putClient(tt.client)
		if e, differs := b.desired(tt.rec); differs != tt.change {
			t.Errorf("%s: desired() = %+v, %t; want a change: %t", name, e, differs, tt.change)
		}
		if got := setupOf(tt.rec, 5555, nil).Adopted; got != (tt.rec.Adopted != nil) {
			t.Errorf("%s: the setup says that another network made the pod: %t", name, got)
		}
	}
}
