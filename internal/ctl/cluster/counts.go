package cluster

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/introspect"
)

// Counts are a node's numbers of addresses.
type Counts struct {
	Used     int `json:"used"`     // of pods
	Warm     int `json:"warm"`     // can be given to a pod at once
	Cooling  int `json:"cooling"`  // given back less than the cooling period ago
	Waiting  int `json:"waiting"`  // pods that wait for one
	Needed   int `json:"needed"`   // more that the node should have; operator mode only
	Capacity int `json:"capacity"` // what the node's ENIs or blocks could hold; 0: not known
}

func (c *Counts) add(o Counts) {
	c.Used += o.Used
	c.Warm += o.Warm
	c.Cooling += o.Cooling
	c.Waiting += o.Waiting
	c.Needed += o.Needed
	c.Capacity += o.Capacity
}

// cells are the columns of counts, or as many dashes.
func (c *Counts) cells() []string {
	if c == nil {
		return []string{"", "", "", ""}
	}
	return []string{strconv.Itoa(c.Used), strconv.Itoa(c.Warm), strconv.Itoa(c.Cooling), strconv.Itoa(c.Waiting)}
}

// countsOf are a NodeNetwork's, as its daemon and the operator reported them.
func countsOf(n *v1alpha1.NodeNetwork) Counts {
	c := Counts{Waiting: int(n.Status.IPAM.Waiting), Needed: int(n.Status.ENI.Needed)}
	for _, u := range n.Status.IPAM.Used {
		if u.Cooling {
			c.Cooling++
		} else {
			c.Used++
		}
	}
	free := 0
	for a := range n.Spec.IPAM.Available {
		if !slices.Contains(n.Spec.IPAM.Releasing, a) {
			free += size(a)
		}
	}
	c.Warm = max(0, free-c.Used-c.Cooling)
	if l := n.Status.ENI.Limits; l != nil {
		each := max(0, int(l.AddressesPerENI)-1)
		if n.Spec.ENI.PrefixDelegation && l.Prefixes {
			each *= prefixAddresses
		}
		c.Capacity = int(n.Status.ENI.Count) * each
	}
	return c
}

// prefixAddresses is the size of a delegated prefix, a /28.
const prefixAddresses = 16

// size is how many addresses an entry of ipam.available stands for.
func size(entry string) int {
	if _, err := netip.ParsePrefix(entry); err == nil {
		return prefixAddresses
	}
	return 1
}

// countsIn are a document's.
func countsIn(doc introspect.Document) Counts {
	t := doc.Totals
	return Counts{Used: t.Allocated, Warm: t.Available, Cooling: t.Cooling, Waiting: t.Waiting, Capacity: t.Capacity}
}
