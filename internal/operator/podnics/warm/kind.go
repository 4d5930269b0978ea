package warm

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// Kind is what the ports of one request have in common: any of them is as good as another.
type Kind struct {
	VPC, Host       string // the VPC object; the host in its provider's words
	Subnets, Groups string // the IDs that are asked for, with spaces between; empty: none in particular
}

// KindOf is the kind of a port that is asked for in a VPC. There is none of a request without a
// host, or with an address of its own.
func KindOf(vpc string, n vpcport.NewPort) (k Kind, ok bool) {
	if n.Host == "" || n.MAC != nil {
		return Kind{}, false
	}
	subnets := slices.Clone(n.Subnets)
	for _, a := range n.Addresses {
		if a.IP.IsValid() {
			return Kind{}, false
		}
		subnets = append(subnets, a.SubnetID)
	}
	return Kind{VPC: vpc, Host: n.Host, Subnets: list(subnets), Groups: list(n.Groups)}, true
}

// list is a set of IDs as text.
func list(ids []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(ids))), " ")
}

// serves tells whether a port has an address of each family of its VPC's ports. One that was made before
// the VPC got another family has not.
func (v VPC) serves(p vpcport.Port) bool { return len(p.Addresses) >= max(1, v.Families) }

// fits tells whether a port of a VPC is as one would be that was asked for now.
func (v VPC) fits(p vpcport.Port, host string, r vpcport.Resolved) bool {
	if p.Host != host || p.Binding.Result != vpcport.Bound || !vpcport.SameSet(p.Groups, r.Groups) || !v.serves(p) {
		return false
	}
	return !slices.ContainsFunc(p.Addresses, func(a vpcport.FixedIP) bool { return !slices.Contains(r.Subnets, a.SubnetID) })
}
