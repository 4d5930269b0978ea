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
	Gateways []netip.Prefix // the address of each subnet's gateway, with the subnet's prefix length
	Uplink   netip.Prefix   // the router's address on the uplink (OpenUplink), which requires a gateway; zero: no uplink
	Ports    []Port
}

// Port is a logical port. It can only send from its own addresses, and sends and receives what its groups allow.
type Port struct {
	ID, MAC string
	Addrs   []netip.Addr
	Host    string   // the only chassis that may bind it; empty: any
	Groups  []string // none: no traffic is allowed
}

// Group is a security group.
type Group struct {
	ID    string
	Rules []Rule
}

// Rule allows packets and replies to them.
type Rule struct {
	Egress   bool
	Protocol string       // tcp, udp, icmp (of both families); empty: any
	Port     uint16       // destination port of tcp and udp; 0: any
	Remote   netip.Prefix // remote prefix; zero: any
	Members  string       // ID of the remote group; empty: any
}

// word converts an ID to the name of a port group, in which OVN allows no dashes.
func word(id string) string { return "pg_" + strings.ReplaceAll(id, "-", "_") }

// match returns a rule of a group in OVN's language, for IPv4 and IPv6 (ovn-nb(5), ACL).
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

// members returns the ports of a group.
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

// sameRouter reports whether a network has the same router in another state.
func (n Network) sameRouter(other Network) bool {
	return slices.Equal(n.Gateways, other.Gateways) && n.Uplink == other.Uplink
}

// without returns the state without ports that another state lacks or places elsewhere, and without routers that differ
// there.
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

// ports returns all ports by ID.
func (s State) ports() map[string]placed {
	all := map[string]placed{}
	for _, n := range s.Networks {
		for _, p := range n.Ports {
			all[p.ID] = placed{p, n.ID}
		}
	}
	return all
}

// placed is a port with its network.
type placed struct {
	Port
	network string
}

// clone shares no list of networks, ports or groups with s, which its owner may change.
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
