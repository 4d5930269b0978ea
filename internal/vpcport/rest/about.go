package rest

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// Names are the names and IDs in a request, any of which can be the cause of an error.
type Names struct {
	Networks, Subnets, Groups, IPs, MACs, Ports []string
}

// NamesOf are the names in a request for ports.
func NamesOf(ports []vpcport.NewPort) (n Names) {
	add := func(to *[]string, name string) {
		if name != "" && !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, p := range ports {
		add(&n.Networks, p.NetworkID)
		for _, g := range p.Groups {
			add(&n.Groups, g)
		}
		for _, a := range p.Addresses {
			add(&n.Subnets, a.SubnetID)
			if a.IP.IsValid() {
				add(&n.IPs, a.IP.String())
			}
		}
		if p.MAC != nil {
			add(&n.MACs, p.MAC.String())
		}
	}
	return n
}

// About is the name that caused an error: one of the right kind for the class that is in the message, or
// the only one in the request. Servers have names in messages only, and for a full subnet Neutron names
// the network.
func (n Names) About(class vpcport.Class, message string) string {
	var of []string
	switch class {
	case vpcport.NetworkGone:
		of = n.Networks
	case vpcport.ReferenceGone:
		of = slices.Concat(n.Subnets, n.Groups)
	case vpcport.SubnetFull:
		of = n.Subnets
	case vpcport.AddressTaken:
		of = n.IPs
	case vpcport.MACTaken:
		of = n.MACs
	case vpcport.Invalid:
		of = slices.Concat(n.IPs, n.Groups, n.Subnets)
	case vpcport.PortGone, vpcport.Stale, vpcport.Conflict:
		of = n.Ports
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
