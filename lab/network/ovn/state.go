package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// State is the desired state: all networks and groups.
type State struct {
	Networks []Network
	Groups   []Group
}

// Network is a logical switch, with a router between its subnets that have gateways.
type Network struct {
	ID       string
	Gateways []netip.Prefix // the address of each subnet's gateway, with the subnet's length
	Uplink   netip.Prefix   // the router's address on the uplink (OpenUplink), which it needs a gateway for; zero: it has none
	Ports    []Port
}

// Port is a logical port. It sends by its own addresses only, and gets and sends what its
// groups allow.
type Port struct {
	ID, MAC string
	Addrs   []netip.Addr
	Host    string   // the only chassis that may have it; empty: any
	Groups  []string // none: nothing is allowed
}

// Group is a security group.
type Group struct {
	ID    string
	Rules []Rule
}

// Rule lets packets through, and the answers to them.
type Rule struct {
	Egress   bool
	Protocol string       // tcp, udp, icmp (of both families); empty: any
	Port     uint16       // of tcp and udp, at the receiver; 0: any
	Remote   netip.Prefix // the other side; zero: anybody
	Members  string       // the group that the other side is in; empty: anybody
}

// word is an ID as a name of a port group: OVN takes no dashes there.
func word(id string) string { return "pg_" + strings.ReplaceAll(id, "-", "_") }

// match is a rule of a group in OVN's language, for IPv4 and IPv6 (ovn-nb(5), ACL).
func (r Rule) match(group string) string {
	of, other := "outport", "src"
	if r.Egress {
		of, other = "inport", "dst"
	}
	var families []string
	for _, v := range []string{"4", "6"} {
		if r.Remote.IsValid() && r.Remote.Addr().Is4() != (v == "4") {
			continue
		}
		m := "ip" + v
		if r.Remote.IsValid() {
			m += fmt.Sprintf(" && ip%s.%s == %s", v, other, r.Remote.Masked())
		}
		if r.Members != "" {
			m += fmt.Sprintf(" && ip%s.%s == $%s_ip%s", v, other, word(r.Members), v)
		}
		if r.Protocol == "icmp" {
			m += " && icmp" + v
		}
		families = append(families, "("+m+")")
	}
	m := fmt.Sprintf("%s == @%s && (%s)", of, word(group), strings.Join(families, " || "))
	if r.Protocol != "" && r.Protocol != "icmp" {
		m += " && " + r.Protocol
	}
	if r.Port != 0 {
		m += fmt.Sprintf(" && %s.dst == %d", r.Protocol, r.Port)
	}
	return m
}

func (r Rule) direction() string {
	if r.Egress {
		return "from-lport"
	}
	return "to-lport"
}

func (p Port) addresses() string {
	words := []string{p.MAC}
	for _, a := range p.Addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// members are the ports of a group.
func (s State) members(group string) (ids []string) {
	for _, n := range s.Networks {
		for _, p := range n.Ports {
			if slices.Contains(p.Groups, group) {
				ids = append(ids, p.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// sameRouter reports whether a network's router is that of another state of it.
func (n Network) sameRouter(other Network) bool {
	return slices.Equal(n.Gateways, other.Gateways) && n.Uplink == other.Uplink
}

// without is what is left of a state when the ports go that another one has not, or not
// there, and the routers that are others there.
func (s State) without(next State) State {
	left, stay := s.clone(), next.ports()
	for i, n := range left.Networks {
		if to, there := next.network(n.ID); there && !n.sameRouter(to) {
			left.Networks[i].Gateways, left.Networks[i].Uplink = nil, netip.Prefix{}
		}
		left.Networks[i].Ports = slices.DeleteFunc(n.Ports, func(p Port) bool { return stay[p.ID].network != n.ID })
	}
	return left
}

// ports are all ports there are, by ID.
func (s State) ports() map[string]placed {
	all := map[string]placed{}
	for _, n := range s.Networks {
		for _, p := range n.Ports {
			all[p.ID] = placed{p, n.ID}
		}
	}
	return all
}

// placed is a port in its network.
type placed struct {
	Port
	network string
}

// clone shares no list of networks, ports or groups with s, whose owner may change them.
func (s State) clone() State {
	s.Networks, s.Groups = slices.Clone(s.Networks), slices.Clone(s.Groups)
	for i := range s.Networks {
		s.Networks[i].Ports = slices.Clone(s.Networks[i].Ports)
	}
	return s
}

func (s State) group(id string) (Group, bool) {
	i := slices.IndexFunc(s.Groups, func(g Group) bool { return g.ID == id })
	if i < 0 {
		return Group{}, false
	}
	return s.Groups[i], true
}

func (s State) network(id string) (Network, bool) {
	i := slices.IndexFunc(s.Networks, func(n Network) bool { return n.ID == id })
	if i < 0 {
		return Network{}, false
	}
	return s.Networks[i], true
}
