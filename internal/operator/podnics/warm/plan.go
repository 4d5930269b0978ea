package warm

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// wanted is how many ports of a kind a host is to have.
type wanted struct {
	kind  Kind
	ports int
}

// stock is a port of the pool.
type stock struct {
	id   string
	kind Kind          // zero: it serves no demand
	idle time.Duration // for how long it has been surplus
}

// host is what a decision about one host depends on.
type host struct {
	room   int      // how many ports it may have besides those of its NICs
	wants  []wanted // the most important first
	ports  []stock
	making []Kind        // of each port that is being created
	keep   time.Duration // for how long a surplus port is kept
	unsure bool          // it is not known yet whether some of its ports can be used
}

// verdict is a decision about one host.
type verdict struct {
	make  []Kind
	keep  []string // IDs of wanted ports
	drop  []string // IDs of ports to delete
	spare []string // IDs of surplus ports that are kept for now
}

// decide decides which ports are created and deleted on a host. Wanted ports come before surplus ones, and none
// is created without room for it.
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
	// A port takes room until it is deleted.
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

// byUse sorts demands by the number of their NICs, and then by when they were last used.
func byUse(all []*demand) {
	slices.SortFunc(all, func(a, b *demand) int { return cmp.Or(cmp.Compare(b.nics, a.nics), b.used.Compare(a.used)) })
}

// Kind is what ports must have in common to be interchangeable.
type Kind struct {
	VPC, Host       string // the name of the VPC object, and the provider's name of the host
	Subnets, Groups string // IDs that are asked for, separated by spaces; empty: any
}

// KindOf is the kind of a new port in a VPC; false for a port without a host, or with a certain address.
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

// list is a set of IDs, separated by spaces.
func list(ids []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(ids))), " ")
}

// serves reports whether a port has an address of each IP family of its VPC's ports. A port that is older than one of
// the families does not.
func (v VPC) serves(p vpcport.Port) bool { return len(p.Addresses) >= max(1, v.Families) }

// fits reports whether a port is like one that the VPC would create now.
func (v VPC) fits(p vpcport.Port, host string, r vpcport.Resolved) bool {
	if p.Host != host || p.Binding.Result != vpcport.Bound || !vpcport.SameSet(p.Groups, r.Groups) || !v.serves(p) {
		return false
	}
	return !slices.ContainsFunc(p.Addresses, func(a vpcport.FixedIP) bool { return !slices.Contains(r.Subnets, a.SubnetID) })
}
