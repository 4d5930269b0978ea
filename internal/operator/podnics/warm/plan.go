package warm

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// wanted is how many ports of a kind there are to be.
type wanted struct {
	kind  Kind
	ports int
}

// stock is a port that there is, and that no NIC has.
type stock struct {
	id   string
	kind Kind          // zero: of none that is in demand
	idle time.Duration // for how long it was more than is wanted
}

// host is what is decided on: one host's.
type host struct {
	room   int      // ports besides those of its NICs that it may have
	wants  []wanted // the most important first
	ports  []stock
	making []Kind        // of each port that is being made
	keep   time.Duration // how long a port is kept that is more than is wanted
	unsure bool          // of some ports it is not known yet whether they serve
}

// verdict is what is to become of it.
type verdict struct {
	make  []Kind
	keep  []string // IDs of ports that are wanted
	drop  []string // IDs of ports
	spare []string // IDs of ports that are more than is wanted, and kept for now
}

// decide decides what is to be made and deleted on a host. What is wanted comes before what is
// kept, and nothing is made for which there is no room.
func decide(h host) (v verdict) {
	left := h.room - len(h.making)
	used := map[string]bool{}
	lacking := make([]int, len(h.wants))
	for i, w := range h.wants {
		lacking[i] = w.ports - count(h.making, w.kind)
		for _, p := range h.ports {
			if p.kind == w.kind && lacking[i] > 0 && left > 0 {
				used[p.id] = true
				lacking[i]--
				left--
			}
		}
	}
	// What is to go has its place until it is gone.
	space := h.room - len(h.making) - len(h.ports)
	for i, w := range h.wants {
		for ; lacking[i] > 0 && left > 0; lacking[i]-- {
			left--
			if space > 0 {
				v.make = append(v.make, w.kind)
				space--
			}
		}
	}
	for _, p := range h.ports {
		switch {
		case used[p.id]:
			v.keep = append(v.keep, p.id)
		case left > 0 && p.idle < h.keep:
			v.spare = append(v.spare, p.id)
			left--
		default:
			v.drop = append(v.drop, p.id)
		}
	}
	return v
}

func count(kinds []Kind, of Kind) (n int) {
	for _, k := range kinds {
		if k == of {
			n++
		}
	}
	return n
}

// byUse orders demands: those that more NICs have, and then those that were used last, come first.
func byUse(all []*demand) {
	slices.SortFunc(all, func(a, b *demand) int { return cmp.Or(cmp.Compare(b.nics, a.nics), b.used.Compare(a.used)) })
}

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
