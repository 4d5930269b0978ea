package portfake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// call makes a call through the client's function, if there is one, and the front. do works with state.mu held.
func (p *Provider) call(ctx context.Context, op string, n int, do func() error) error {
	through := func(ctx context.Context) error {
		return p.Front.call(ctx, op, n, func() (err error) { p.set(func() { err = do() }); return err })
	}
	if p.via == nil {
		return through(ctx)
	}
	if err := p.via(ctx, through); err != nil {
		return wrapped(op, err)
	}
	return nil
}

// call delays a call, injects its fault and logs it.
func (f *Front) call(ctx context.Context, op string, n int, do func() error) error {
	err := f.turn(ctx)
	if err == nil {
		if fault := f.fault(op); fault == nil {
			err = do()
		} else {
			err = fault.fail(ctx, do)
		}
		if f.atOnce != nil {
			<-f.atOnce
		}
	}
	if err != nil {
		err = wrapped(op, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{op, n, f.clock.Now(), err})
	return err
}

// turn waits for a free slot and for the call's latency.
func (f *Front) turn(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if f.atOnce != nil {
		select {
		case f.atOnce <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if f.latency <= 0 {
		return nil
	}
	select {
	case <-f.clock.After(f.latency):
		return nil
	case <-ctx.Done():
		if f.atOnce != nil {
			<-f.atOnce
		}
		return context.Cause(ctx)
	}
}

// fail applies the fault to a call.
func (fault *Fault) fail(ctx context.Context, do func() error) error {
	var err error
	if fault.After {
		err = do()
	}
	if fault.Hang != nil {
		select {
		case <-fault.Hang:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return cmp.Or(err, fault.Err)
}

// wrapped converts any error to a *vpcport.Error.
func wrapped(op string, err error) error {
	if _, ok := errors.AsType[*vpcport.Error](err); ok {
		return err
	}
	return &vpcport.Error{Class: vpcport.Transient, Op: op, Err: err}
}

func refuse(class vpcport.Class, op, about, message string) error {
	return &vpcport.Error{Class: class, Op: op, Status: 409, About: about, Message: message}
}

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits { return p.options.Traits }

// Project implements vpcport.Provider.
func (p *Provider) Project(ctx context.Context) (string, error) {
	return p.options.Project, p.call(ctx, "Project", 1, func() error { return nil })
}

// Network implements vpcport.Provider.
func (p *Provider) Network(ctx context.Context, idOrName string) (out vpcport.Network, err error) {
	err = p.call(ctx, "Network", 1, func() error {
		if n, ok := p.state.networks[idOrName]; ok {
			out = n
			return nil
		}
		var named []vpcport.Network
		for _, n := range p.state.networks {
			if n.Name == idOrName {
				named = append(named, n)
			}
		}
		switch len(named) {
		case 0:
			return refuse(vpcport.NetworkGone, "Network", idOrName, "no network "+idOrName)
		case 1:
			out = named[0]
			return nil
		default:
			return refuse(vpcport.Invalid, "Network", idOrName, "several networks are named "+idOrName)
		}
	})
	out.Subnets = slices.Clone(out.Subnets)
	return out, err
}

// Ports implements vpcport.Provider.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) (out []vpcport.Port, err error) {
	err = p.call(ctx, "Ports", max(len(f.IDs), len(f.Devices), len(f.MACs)), func() error {
		if f.Empty() || max(len(f.IDs), len(f.Devices), len(f.MACs)) > p.options.Traits.MaxFilter {
			return refuse(vpcport.Bug, "Ports", "", "a filter that is empty or too long")
		}
		shown := p.state.ports.listed()
		if len(f.IDs) > 0 { // the common case, which does not need all ports
			for _, id := range f.IDs {
				if o, ok := shown[id]; ok && f.Has(o) {
					out = append(out, copied(o))
				}
			}
			return nil
		}
		for _, o := range shown {
			if f.Has(o) {
				out = append(out, copied(o))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (out vpcport.Port, err error) {
	err = p.call(ctx, "Get", 1, func() error {
		o, err := p.state.ports.find("Get", id)
		if err == nil {
			out = copied(o.Port)
		}
		return err
	})
	return out, err
}

func (ps *ports) find(op, id string) (*port, error) {
	o := ps.byID[id]
	if o == nil {
		return nil, refuse(vpcport.PortGone, op, id, "no port "+id)
	}
	return o, nil
}

// Update implements vpcport.Provider.
func (p *Provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (out vpcport.Port, err error) {
	err = p.call(ctx, "Update", 1, func() error {
		o, err := p.state.ports.find("Update", id)
		if err != nil {
			return err
		}
		if p.options.Traits.Revisions && revision != 0 && revision != o.Revision {
			return refuse(vpcport.Stale, "Update", id, "the port has another revision")
		}
		if err := p.state.knownGroups("Update", c.Groups); err != nil {
			return err
		}
		p.state.ports.changed(o, func() { p.state.apply(o, c) })
		out = copied(o.Port)
		return nil
	})
	return out, err
}

// apply changes a port. A port that leaves its host goes down.
func (s *state) apply(o *port, c vpcport.Change) {
	if c.Device != nil {
		o.Device = *c.Device
	}
	if c.Owner != nil {
		o.Owner = *c.Owner
	}
	if c.Groups != nil {
		o.Groups = slices.Clone(c.Groups)
	}
	if c.Host != nil && (*c.Host != o.Host || o.Binding.Result == vpcport.BindingFailed) {
		if o.pluggedAt != *c.Host {
			s.ports.tears(o, "Update")
		}
		o.Host, o.Status = *c.Host, vpcport.StatusDown
		o.Binding = s.binding(o.Host)
	}
}

// binding returns the result of binding to a host.
func (s *state) binding(host string) vpcport.Binding {
	plug, has := s.hosts[host]
	switch {
	case host == "":
		return vpcport.Binding{}
	case !has:
		return vpcport.Binding{Result: vpcport.BindingFailed}
	default:
		return vpcport.Binding{Result: vpcport.Bound, Plug: plug}
	}
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	return p.call(ctx, "Delete", 1, func() error {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.tears(o, "Delete")
			p.state.ports.drop(o)
		}
		return nil
	})
}

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

// create creates one port. state.mu is held.
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
		return nil, refuse(vpcport.Forbidden, "Create", "mac_address", "the credentials may not choose MAC addresses")
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

// addresses chooses the requested addresses or, like Neutron, one of each family of the network. As in Neutron, the gateway's address can
// be requested.
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
	key := network + " " + of.ID
	ip := s.ports.lowest[key]
	if !of.CIDR.Contains(ip) {
		ip = of.CIDR.Masked().Addr().Next()
	}
	for ; of.CIDR.Contains(ip.Next()); ip = ip.Next() {
		if _, taken := s.ports.ips[fixedIP{network, ip}]; !taken && ip != of.Gateway {
			s.ports.lowest[key] = ip
			return ip, nil
		}
	}
	return want, refuse(vpcport.SubnetFull, "Create", of.ID, "no more IP addresses in subnet "+of.ID)
}
