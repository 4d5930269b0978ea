package nodenetwork

import (
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
)

// An ENI that was to be detached, and of which the daemon took something back
// meanwhile, stays as it is, the mark of an address that EC2 was asked for included.
func TestMarkOfAnENIThatStays(t *testing.T) {
	n := asked(newScript())
	n.obj.Spec.IPAM = v1alpha1.IPAMSpec{
		Available:   map[string]v1alpha1.AvailableAddress{"10.0.0.1": {Resource: "eni-2"}, "10.0.0.2": {Resource: "eni-2"}},
		Releasing:   []string{"10.0.0.2"},
		Unassigning: []string{"10.0.0.2"},
	}
	n.obj.Status.IPAM.Released = []string{"10.0.0.2"}
	leaving := inventory()
	leaving.Leaving = []eni.Leave{{ENI: "eni-2", Attached: true}}
	n.setInventory(leaving)
	n.mu.Lock()
	got := n.desiredIPAM()
	n.mu.Unlock()
	if len(got.Available) != 2 || !slices.Equal(got.Releasing, []string{"10.0.0.2"}) || !slices.Equal(got.Unassigning, []string{"10.0.0.2"}) {
		t.Errorf("got %+v", got)
	}
}
