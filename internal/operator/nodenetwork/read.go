package nodenetwork

import (
	"net/netip"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// weight is how many addresses an IPv4 thing stands for.
func weight(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

// parseThings reads a list as far as it makes sense.
func parseThings(list []string) map[netip.Prefix]bool {
	out := make(map[netip.Prefix]bool, len(list))
	for _, text := range list {
		if p, err := nodenetwork.Parse(text); err == nil {
			out[p] = true
		}
	}
	return out
}

// seed is what the object says was published of its instance. What is recorded
// as handed to the cloud is on its way back still; candidates are not.
func seed(o *v1alpha1.NodeNetwork, now time.Time) eni.Inventory {
	r := nodenetwork.Read(o)
	inv := r.Inventory
	inv.At = publishedAt(o)
	for _, p := range r.Unassigning {
		inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, ENI: o.Spec.IPAM.Available[nodenetwork.Format(p)].Resource, Since: now})
	}
	return inv
}
