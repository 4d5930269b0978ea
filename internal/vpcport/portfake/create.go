package portfake

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Create implements vpcport.Provider.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) (out []vpcport.Port, err error) {
	err = p.call(ctx, "Create", len(ports), func() error {
		if len(ports) == 0 || len(ports) > p.options.Traits.MaxBatch {
			return refuse(vpcport.TooLarge, "Create", "", fmt.Sprintf("%d ports, expected 1 to %d", len(ports), p.options.Traits.MaxBatch))
		}
		var made []*port
		for _, want := range ports {
			o, err := p.state.create(want)
			if err != nil {
				for _, undone := range made {
					p.state.ports.drop(undone)
				}
				return err
			}
			made = append(made, o)
		}
		for _, o := range made {
			out = append(out, copied(o.Port))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// create makes one port. state.mu is held.
func (s *state) create(want vpcport.NewPort) (*port, error) {
	network, ok := s.networks[want.NetworkID]
	if !ok {
		return nil, refuse(vpcport.NetworkGone, "Create", want.NetworkID, "no network "+want.NetworkID)
	}
	if err := s.knownGroups("Create", want.Groups); err != nil {
		return nil, err
	}
	if s.quota > 0 && len(s.ports.byID) >= s.quota {
		return nil, refuse(vpcport.OverQuota, "Create", "", "quota exceeded for resources: ['port']")
	}
	o := &port{Port: vpcport.Port{
		NetworkID: network.ID, Name: want.Name, Device: want.Device, Owner: vpcport.Owner, Groups: slices.Clone(want.Groups),
		Host: want.Host, Binding: s.binding(want.Host), CreatedAt: s.ports.clock.Now(), MAC: slices.Clone(want.MAC),
	}}
	if o.Groups == nil {
		o.Groups = []string{"default"}
	}
	if want.MAC != nil && !s.traits.ChosenMAC {
		return nil, refuse(vpcport.Forbidden, "Create", "mac_address", "the MAC address is not yours to choose")
	}
	if _, taken := s.ports.macs[network.ID+" "+want.MAC.String()]; taken && want.MAC != nil {
		return nil, refuse(vpcport.MACTaken, "Create", want.MAC.String(), "a port of the network has the MAC address "+want.MAC.String())
	}
	var err error
	if o.Addresses, err = s.addresses(network, want.Addresses); err != nil {
		return nil, err
	}
	s.ports.made++
	o.ID = portID(s.ports.made)
	if o.MAC == nil {
		o.MAC = mac.Addr{0xfa, 0x16, 0x3e, byte(s.ports.made >> 16), byte(s.ports.made >> 8), byte(s.ports.made)}
	}
	s.ports.enter(o)
	return o, nil
}

func (s *state) knownGroups(op string, groups []string) error {
	for _, g := range groups {
		if !s.groups[g] {
			return refuse(vpcport.ReferenceGone, op, g, "no security group "+g)
		}
	}
	return nil
}

// addresses chooses the requested addresses or, like Neutron, one of each family of the network. As in
// Neutron, the gateway's address can be requested.
func (s *state) addresses(network vpcport.Network, want []vpcport.NewAddress) ([]vpcport.FixedIP, error) {
	if want == nil {
		families := map[bool]bool{}
		for _, s := range network.Subnets {
			if v4 := s.CIDR.Addr().Is4(); !families[v4] {
				families[v4] = true
				want = append(want, vpcport.NewAddress{SubnetID: s.ID})
			}
		}
	}
	var out []vpcport.FixedIP
	for _, w := range want {
		i := slices.IndexFunc(network.Subnets, func(s vpcport.Subnet) bool { return s.ID == w.SubnetID })
		if i < 0 {
			return nil, refuse(vpcport.ReferenceGone, "Create", w.SubnetID, "no subnet "+w.SubnetID)
		}
		ip, err := s.address(network.ID, network.Subnets[i], w.IP)
		if err != nil {
			return nil, err
		}
		out = append(out, vpcport.FixedIP{SubnetID: w.SubnetID, IP: ip})
	}
	return out, nil
}

func (s *state) address(network string, of vpcport.Subnet, want netip.Addr) (netip.Addr, error) {
	_, taken := s.ports.ips[fixedIP{network, want}]
	switch {
	case want.IsValid() && !of.CIDR.Contains(want):
		return want, refuse(vpcport.Invalid, "Create", want.String(), want.String()+" is not in subnet "+of.ID)
	case want.IsValid() && taken:
		return want, refuse(vpcport.AddressTaken, "Create", want.String(), want.String()+" is another port's")
	case want.IsValid():
		return want, nil
	}
	for ip := of.CIDR.Masked().Addr().Next(); of.CIDR.Contains(ip.Next()); ip = ip.Next() {
		if _, taken := s.ports.ips[fixedIP{network, ip}]; !taken && ip != of.Gateway {
			return ip, nil
		}
	}
	return want, refuse(vpcport.SubnetFull, "Create", of.ID, "no more IP addresses in subnet "+of.ID)
}
