package nodenetwork

import (
	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
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
	e, perENI := &o.Spec.ENI, 1
	if l := o.Status.ENI.Limits; l != nil {
		perENI = max(1, int(l.AddressesPerENI)-1)
	}
	switch {
	case e.PreAllocate != nil:
		return int(*e.PreAllocate)
	case e.WarmIPTarget != nil:
		return int(*e.WarmIPTarget)
	case e.WarmPrefixTarget != nil && e.PrefixDelegation:
		return int(*e.WarmPrefixTarget) * ipam.PrefixAddresses
	case e.WarmENITarget != nil:
		return int(*e.WarmENITarget) * perENI
	}
	return defaultPreAllocate
}
