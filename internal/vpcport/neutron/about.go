package neutron

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// names are what a request names, any of which a refusal may be about.
type names struct {
	networks, subnets, groups, ips, macs, ports []string
}

func namesOf(ports []vpcport.NewPort) (n names) {
	add := func(to *[]string, name string) {
		if name != "" && !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, p := range ports {
		add(&n.networks, p.NetworkID)
		for _, g := range p.Groups {
			add(&n.groups, g)
		}
		for _, a := range p.Addresses {
			add(&n.subnets, a.SubnetID)
			if a.IP.IsValid() {
				add(&n.ips, a.IP.String())
			}
		}
		if p.MAC != nil {
			add(&n.macs, p.MAC.String())
		}
	}
	return n
}

// about is what a refusal of a class is about: the one name of the fitting kind that its
// message has, or that the request has at all. Neutron names things in messages only, and
// for a full subnet names the network.
func (n names) about(class vpcport.Class, message string) string {
	var of []string
	switch class {
	case vpcport.NetworkGone:
		of = n.networks
	case vpcport.ReferenceGone:
		of = slices.Concat(n.subnets, n.groups)
	case vpcport.SubnetFull:
		of = n.subnets
	case vpcport.AddressTaken:
		of = n.ips
	case vpcport.MACTaken:
		of = n.macs
	case vpcport.Invalid:
		of = slices.Concat(n.ips, n.groups, n.subnets)
	case vpcport.PortGone, vpcport.Stale, vpcport.Conflict:
		of = n.ports
	}
	words := strings.FieldsFunc(strings.ToLower(message), func(r rune) bool {
		return r > 0x7f || !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz-_.:", r)
	})
	for _, name := range of {
		for _, w := range words {
			if w == name || strings.TrimRight(w, ".:") == name {
				return name
			}
		}
	}
	if len(of) == 1 && class != vpcport.Invalid {
		return of[0]
	}
	return ""
}
