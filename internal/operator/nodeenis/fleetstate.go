package nodeenis

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// fleetState is what the fleet last reported of a node.
type fleetState struct {
	inv       *eni.Inventory        // to be published; nil: nothing was observed yet
	primaries map[netip.Prefix]bool // the primary addresses of inv's ENIs
	status    eni.Status
	passBegan time.Time // about when the fleet's current pass began
}

func (f *fleetState) setInventory(inv *eni.Inventory) {
	f.inv = inv
	clear(f.primaries)
	for i := range inv.ENIs {
		if a := inv.ENIs[i].PrimaryIPv4; a.IsValid() {
			f.primaries[cloud.HostPrefix(a)] = true
		}
	}
}

// unmarked are the addresses and prefixes that pods may have, each with its ENI, without ENIs
// that are marked. Where pods get no IPv6 address, it leaves out single IPv6 addresses, which
// a subnet may assign to each new ENI, unless one was published: pods may still have that.
func (f *fleetState) unmarked(o *v1alpha1.NodeNetwork) map[netip.Prefix]string {
	out := podAddresses(f.inv)
	six := f.inv.Families.Has(ipfamily.IPv6)
	maps.DeleteFunc(out, func(p netip.Prefix, id string) bool {
		foreign := !six && p.IsSingleIP() && ipfamily.Of(p.Addr()) == ipfamily.IPv6 && resourceOf(o, p) == ""
		return foreign || markedENI(o, id)
	})
	return out
}

// podAddresses are the addresses and prefixes that pods may have, each with its ENI.
func podAddresses(inv *eni.Inventory) map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		if !e.Serves {
			continue
		}
		for _, a := range slices.Concat(e.Addresses, e.IPv6) {
			out[cloud.HostPrefix(a)] = e.ID
		}
		for _, p := range slices.Concat(e.Prefixes, e.IPv6Prefixes) {
			out[p] = e.ID
		}
	}
	return out
}

// seed is what the object says was published of its instance. What is marked in it is still
// being released; candidates are not.
func seed(o *v1alpha1.NodeNetwork, now time.Time) eni.Inventory {
	r := nodenetwork.Read(o)
	inv := r.Inventory
	inv.At = publishedAt(o)
	for _, p := range r.Unassigning {
		inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, ENI: o.Spec.IPAM.Available[nodenetwork.Format(p)].Resource, Since: now})
	}
	return inv
}
