package portcloud

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/network/ovn"
)

// keystonePort is the port of Keystone and of Neutron behind it.
const keystonePort = 5000

// User of the operators.
const (
	user     = "berth"
	password = "only-the-operator-has-this"
	project  = "berth"
)

// Model is the strict fake of Neutron and Keystone, with OVN for its networks, ports and groups: a port is ACTIVE when OVN
// reports it as up on its host.
type Model struct {
	// Neutron contains the state; tests inject failures, wrong replies and changes.
	Neutron *neutronfake.Cloud
	OVN     *ovn.OVN

	options Options
	server  *http.Server
	cancel  context.CancelFunc
	done    sync.WaitGroup

	opening sync.Mutex // held while the uplink is opened

	mu      sync.Mutex     // guards all below
	trouble error          // first error of the follower
	uplinks map[string]int // router number on the uplink, by network ID
}

// NewModel starts a Model without networks.
func NewModel(ctx context.Context, o Options) (Cloud, error) {
	m := &Model{Neutron: neutronfake.New(neutronfake.Options{}), options: o, cancel: func() {}, uplinks: map[string]int{}}
	m.Neutron.Keystone.AddUser(neutronfake.User{Name: user, Password: password, Project: project})
	if err := m.raise(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Model) raise(ctx context.Context) (err error) {
	if m.OVN, err = ovn.Start(ctx, ovn.Options{Dir: filepath.Join(m.options.Dir, "ovn"), Netns: m.options.Netns}); err != nil {
		return err
	}
	m.OVN.OnUp(m.up)
	follow, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.done.Go(func() { m.follow(follow) })
	ln, err := ns.Listen(m.options.Netns, netip.AddrPortFrom(m.options.Address, keystonePort))
	if err != nil {
		return err
	}
	m.server = httpreply.Server(m.Neutron, m.options.Log.Handler())
	m.server.ConnState = reset
	go func() { _ = m.server.Serve(ln) }()
	m.options.Progress(fmt.Sprintf("Neutron and Keystone (strict fakes) at %s, with a real OVN", m.Access().Endpoint))
	return nil
}

// reset makes connections end with a reset, which leaves no state that would keep the namespace.
func reset(c net.Conn, state http.ConnState) {
	if t, ok := c.(*net.TCPConn); ok && state == http.StateNew {
		_ = t.SetLinger(0)
	}
}

// up is OVN's status of a port.
func (m *Model) up(port string, up bool) {
	if !up {
		m.Neutron.Unplug(port)
		return
	}
	for _, p := range m.Neutron.Ports() {
		if p.ID == port {
			m.Neutron.Plug(port, p.Host)
		}
	}
}

// follow applies Neutron's state to OVN, until ctx ends.
func (m *Model) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.Neutron.Changes():
		}
		if err := m.OVN.Apply(ctx, m.state(m.Neutron.Snapshot())); err != nil && ctx.Err() == nil {
			m.options.Log.Error("failed to apply Neutron's state to OVN", "err", err)
			m.mu.Lock()
			m.trouble = errors.Join(m.trouble, err)
			m.mu.Unlock()
		}
	}
}

// state converts Neutron's state to OVN's.
func (m *Model) state(b neutronfake.Snapshot) (s ovn.State) {
	for _, g := range b.Groups {
		group := ovn.Group{ID: g.ID}
		for _, r := range g.Rules {
			group.Rules = append(group.Rules, ovn.Rule{Egress: r.Egress, Protocol: r.Protocol, Port: r.Port, Remote: r.Remote, Members: r.Group})
		}
		s.Groups = append(s.Groups, group)
	}
	for _, n := range b.Networks {
		network := ovn.Network{ID: n.ID, Uplink: m.uplink(n.ID)}
		for _, sub := range b.Subnets {
			if sub.Network == n.ID && sub.Gateway.IsValid() {
				network.Gateways = append(network.Gateways, netip.PrefixFrom(sub.Gateway, sub.CIDR.Bits()))
			}
		}
		for _, p := range b.Ports {
			if p.Network != n.ID {
				continue
			}
			port := ovn.Port{ID: p.ID, MAC: p.MAC, Host: p.Host, Groups: p.Groups}
			for _, f := range p.FixedIPs {
				port.Addrs = append(port.Addrs, f.IP)
			}
			network.Ports = append(network.Ports, port)
		}
		s.Networks = append(s.Networks, network)
	}
	return s
}

// Access implements Cloud.
func (m *Model) Access() Access {
	return Access{
		Provider: v1alpha1.ProviderNeutron,
		Endpoint: fmt.Sprintf("http://%s/v3", netip.AddrPortFrom(m.options.Address, keystonePort)),
		Secret:   map[string]string{"username": user, "password": password, "project": project},
	}
}

// Join implements Cloud.
func (m *Model) Join(ctx context.Context, h Host) (Joined, error) {
	s, err := m.OVN.AddNode(ctx, h.Name, h.Netns, h.Dir, h.State)
	if err != nil {
		return Joined{}, err
	}
	m.Neutron.AddHost(h.Name, neutronfake.Host{})
	return Joined{OVSDB: s.Endpoint()}, nil
}

// Leave implements Cloud.
func (m *Model) Leave(host string) error {
	m.Neutron.RemoveHost(host)
	return m.OVN.RemoveNode(host)
}

// AddNetwork implements Cloud.
func (m *Model) AddNetwork(ctx context.Context, n Network) (Network, error) {
	n.ID = m.Neutron.AddNetwork(neutronfake.Network{Name: n.Name}).ID
	if n.Routed {
		if err := m.join(ctx, n); err != nil {
			return n, err
		}
	}
	n.Subnets = slices.Clone(n.Subnets)
	for i, s := range n.Subnets {
		n.Subnets[i].ID = m.Neutron.AddSubnet(neutronfake.Subnet{Name: s.Name, Network: n.ID, CIDR: s.CIDR, Gateway: s.Gateway()}).ID
	}
	return n, nil
}

// join gives a network a router on the uplink, which it opens for the first network.
func (m *Model) join(ctx context.Context, n Network) error {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	number := len(m.uplinks)
	m.mu.Unlock()
	if number == 0 {
		if err := m.OVN.OpenUplink(ctx); err != nil {
			return fmt.Errorf("connect networks to the outside: %w", err)
		}
	}
	for _, s := range n.Subnets {
		if err := m.OVN.Route(s.CIDR, ovn.UplinkAddr(number).Addr()); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uplinks[n.ID] = number
	return nil
}

// uplink returns the address of a network's router on the uplink, or zero if it has none.
func (m *Model) uplink(network string) netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number, ok := m.uplinks[network]; ok {
		return ovn.UplinkAddr(number)
	}
	return netip.Prefix{}
}

// AddGroup implements Cloud.
func (m *Model) AddGroup(_ context.Context, name string, in ...Rule) (id string, err error) {
	g := neutronfake.Group{Name: name, Rules: []neutronfake.Rule{{Egress: true}}}
	for _, r := range in {
		g.Rules = append(g.Rules, neutronfake.Rule{Protocol: r.Protocol, Port: r.Port})
	}
	return m.Neutron.AddGroup(g).ID, nil
}

// Allow implements Cloud.
func (m *Model) Allow(_ context.Context, group string, in Rule) error {
	for _, g := range m.Neutron.Snapshot().Groups {
		if g.ID == group {
			g.Rules = append(slices.Clone(g.Rules), neutronfake.Rule{Protocol: in.Protocol, Port: in.Port})
			m.Neutron.AddGroup(g)
			return nil
		}
	}
	return fmt.Errorf("security group %s does not exist", group)
}

// AddPort implements Cloud.
func (m *Model) AddPort(_ context.Context, p Port) (Port, error) {
	made := neutronfake.Port{Name: p.Name, Network: p.Network, Groups: p.Groups, Tags: p.Tags}
	for _, a := range p.Addresses {
		made.FixedIPs = append(made.FixedIPs, neutronfake.FixedIP{Subnet: a.Subnet, IP: a.IP})
	}
	return portOfNeutron(m.Neutron.AddPort(made)), nil
}

// RemovePort implements Cloud.
func (m *Model) RemovePort(_ context.Context, id string) error {
	m.Neutron.Remove(id)
	return nil
}

// Ports implements Cloud.
func (m *Model) Ports(context.Context) (all []Port, err error) {
	for _, p := range m.Neutron.Ports() {
		all = append(all, portOfNeutron(p))
	}
	return all, nil
}

func portOfNeutron(p neutronfake.Port) Port {
	out := Port{
		ID: p.ID, Name: p.Name, Network: p.Network, Device: p.Device, Owner: p.Owner, MAC: p.MAC,
		Groups: p.Groups, Host: p.Host, Status: p.Status,
	}
	for _, f := range p.FixedIPs {
		out.Addresses = append(out.Addresses, Address{Subnet: f.Subnet, IP: f.IP})
	}
	return out
}

// Plugged implements Cloud.
func (m *Model) Plugged(ctx context.Context, host string) ([]ovn.Interface, error) {
	s := m.OVN.Switch(host)
	if s == nil {
		return nil, fmt.Errorf("host %s does not exist", host)
	}
	return s.Interfaces(ctx)
}

// Alive implements Cloud.
func (m *Model) Alive() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.trouble, m.OVN.Alive())
}

// Close implements Cloud.
func (m *Model) Close() error {
	m.cancel()
	m.done.Wait()
	var errs []error
	if m.server != nil {
		errs = append(errs, m.server.Close())
	}
	if m.OVN != nil {
		errs = append(errs, m.OVN.Close())
	}
	return errors.Join(errs...)
}

var _ Cloud = (*Model)(nil)
