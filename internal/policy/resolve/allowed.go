package resolve

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
)

// Judgement is the decision of the policies of both ends about a flow.
type Judgement struct {
	Source, Destination *types.NamespacedName // the pods; nil if no pod has the address
	Egress, Ingress     policy.Decision       // by the source's and by the destination's policies
}

// Allowed reports whether both ends allow it.
func (j Judgement) Allowed() bool { return j.Egress.Allowed && j.Ingress.Allowed }

// Judge decides about a flow between two pods, or between a pod and another address. Its cost is proportional to the number of pods.
func (r *Resolver) Judge(f policy.Flow) Judgement {
	j := Judgement{Egress: policy.Decision{Allowed: true}, Ingress: policy.Decision{Allowed: true}}
	for name, p := range r.pods {
		if p.has(f.Source) {
			_, list, _ := r.Policies(name)
			j.Source, j.Egress = &name, policy.Decide(list, policy.Egress, f, r)
		}
		if p.has(f.Destination) {
			_, list, _ := r.Policies(name)
			j.Destination, j.Ingress = &name, policy.Decide(list, policy.Ingress, f, r)
		}
	}
	return j
}

func (p *pod) has(a netip.Addr) bool {
	for _, own := range p.Addrs {
		if own == a {
			return true
		}
	}
	return false
}
