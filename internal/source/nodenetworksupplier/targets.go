package nodenetworksupplier

import (
	"math"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// reported tells whether the operator has said which addresses the instance has:
// some, or that there are none. What it has and what pods may use are two writes,
// so an object that was made anew may tell of addresses for a moment and not
// name them yet.
func reported(o *v1alpha1.NodeNetwork) bool {
	return len(o.Spec.IPAM.Available) > 0 || len(o.Status.ENI.ENIs) > 0 && o.Status.ENI.Available == 0
}

// defaultPreAllocate is how many addresses are kept free when neither
// preAllocate nor a warm target is set (Cilium's AWS ENI allocator).
var defaultPreAllocate = ipam.DefaultCilium().PreAllocate

// watermark is how many free addresses the object asks for.
func watermark(o *v1alpha1.NodeNetwork) int {
	e := o.EffectiveENI()
	perENI, byPrefix := perENI(o)
	switch {
	case e.PreAllocate != nil:
		return int(*e.PreAllocate)
	case e.WarmIPTarget != nil:
		return int(*e.WarmIPTarget)
	case e.WarmPrefixTarget != nil && byPrefix:
		return int(*e.WarmPrefixTarget) * ipam.PrefixAddresses
	case e.WarmENITarget != nil:
		return int(*e.WarmENITarget) * perENI
	}
	return defaultPreAllocate
}

// perENI is for how many pods an ENI of the node has addresses: of the family that it
// can have fewer of. IPv6 addresses come by prefixes where the instance type has
// them, and limit nothing then; of IPv6 alone a prefix counts as one of IPv4 does
// (ipam.Policy.Demand). byPrefix tells whether warm targets are of prefixes.
func perENI(o *v1alpha1.NodeNetwork) (pods int, byPrefix bool) {
	families, _ := nodenetwork.Families(o)
	l := o.Status.ENI.Limits
	if l == nil {
		return 1, o.EffectiveENI().Prefixes()
	}
	pods = math.MaxInt
	if families.Has(ipfamily.IPv4) {
		pods = int(l.AddressesPerENI) - 1
	}
	if families.Has(ipfamily.IPv6) && !l.Prefixes {
		pods = min(pods, int(l.IPv6AddressesPerENI))
	}
	if pods == math.MaxInt {
		return ipam.PrefixAddresses, true
	}
	return max(1, pods), o.EffectiveENI().Prefixes()
}
