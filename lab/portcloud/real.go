package portcloud

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/network/ovn"
	"github.com/berthnet/berth/lab/openstack"
)

// Real is a real Neutron with a real Keystone.
type Real struct {
	// OpenStack is the running instance; tests kill its programs.
	OpenStack *openstack.Cloud

	user openstack.User

	mu       sync.Mutex // guards networks
	networks []string   // IDs
}

// NewReal starts a Real with OVN, without networks.
func NewReal(ctx context.Context, o Options) (Cloud, error) {
	return RealWith(openstack.Options{Backend: openstack.OVN})(ctx, o)
}

// NewHybrid starts a Real with Neutron's own agent on each host, whose iptables firewall gives each port a separate Linux
// bridge (hybrid plug).
func NewHybrid(ctx context.Context, o Options) (Cloud, error) {
	return RealWith(openstack.Options{Backend: openstack.Agent})(ctx, o)
}

// RealWith is NewReal with OpenStack options. Only Backend and AgentDown apply.
func RealWith(with openstack.Options) func(context.Context, Options) (Cloud, error) {
	return func(ctx context.Context, o Options) (Cloud, error) {
		all := with
		all.Dir, all.Netns, all.Keystone, all.Progress = filepath.Join(o.Dir, "openstack"), o.Netns, true, o.Progress
		c, err := openstack.Start(ctx, all)
		if err != nil {
			return nil, err
		}
		r := &Real{OpenStack: c}
		if r.user, err = c.AddUser(ctx, user, openstack.Role); err != nil {
			_ = c.Close()
			return nil, err
		}
		return r, nil
	}
}

// Access implements Cloud.
func (r *Real) Access() Access {
	return Access{
		Provider: v1alpha1.ProviderNeutron,
		Endpoint: r.OpenStack.Endpoint(),
		Secret:   map[string]string{"username": r.user.Name, "password": r.user.Password, "project": r.user.Project},
	}
}

// Join implements Cloud.
func (r *Real) Join(ctx context.Context, h Host) (Joined, error) {
	n, err := r.OpenStack.Join(ctx, h.Name, h.Netns)
	if err != nil {
		return Joined{}, err
	}
	return Joined{OVSDB: n.OVSDB()}, nil
}

func (r *Real) node(host string) *openstack.Node {
	for _, n := range r.OpenStack.Nodes() {
		if n.Name == host {
			return n
		}
	}
	return nil
}

// Leave implements Cloud.
func (r *Real) Leave(host string) error {
	if n := r.node(host); n != nil {
		return n.Leave()
	}
	return nil
}

// AddNetwork implements Cloud.
func (r *Real) AddNetwork(ctx context.Context, n Network) (Network, error) {
	if n.Routed {
		return n, fmt.Errorf("network %s: the lab's real Neutron does not support networks that are routed to the outside", n.Name)
	}
	made, err := r.OpenStack.AddNetwork(ctx, openstack.Network{Name: n.Name})
	if err != nil {
		return n, err
	}
	r.mu.Lock()
	r.networks = append(r.networks, made.ID)
	r.mu.Unlock()
	n.ID, n.Subnets = made.ID, slices.Clone(n.Subnets)
	for i, s := range n.Subnets {
		sub, err := r.OpenStack.AddSubnet(ctx, openstack.Subnet{Name: s.Name, Network: n.ID, CIDR: s.CIDR, Gateway: s.Gateway(), Pools: upperHalf(s.CIDR)})
		if err != nil {
			return n, err
		}
		n.Subnets[i].ID = sub.ID
	}
	return n, nil
}

// upperHalf keeps Neutron, which allocates at random, from allocating addresses that a pod may request: a lab's fixed
// addresses are in the lower half. The last address of a subnet is its broadcast address.
func upperHalf(cidr netip.Prefix) []openstack.Pool {
	if !cidr.Addr().Is4() || cidr.Bits() < 16 || cidr.Bits() > 28 {
		return nil
	}
	first, last := cidr.Masked().Addr().As4(), cidr.Masked().Addr().As4()
	bits := cidr.Bits()
	first[bits/8] |= 0x80 >> (bits % 8)
	for bit := bits; bit < 31; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	return []openstack.Pool{{Start: netip.AddrFrom4(first), End: netip.AddrFrom4(last)}}
}

// AddGroup implements Cloud.
func (r *Real) AddGroup(ctx context.Context, name string, in ...Rule) (id string, err error) {
	g, err := r.OpenStack.AddGroup(ctx, name)
	if err != nil {
		return "", err
	}
	for _, rule := range in {
		if err := r.Allow(ctx, g.ID, rule); err != nil {
			return "", err
		}
	}
	return g.ID, nil
}

// Allow implements Cloud.
func (r *Real) Allow(ctx context.Context, group string, in Rule) error {
	_, err := r.OpenStack.AddRule(ctx, openstack.Rule{
		Group: group, Direction: "ingress", EtherType: "IPv4", Protocol: in.Protocol, First: int(in.Port), Last: int(in.Port),
	})
	return err
}

// AddPort implements Cloud.
func (r *Real) AddPort(ctx context.Context, p Port) (Port, error) {
	ask := openstack.Port{Name: p.Name, Network: p.Network, Groups: p.Groups}
	for _, a := range p.Addresses {
		ask.Fixed = append(ask.Fixed, openstack.Fixed{Subnet: a.Subnet, IP: a.IP})
	}
	made, err := r.OpenStack.AddPort(ctx, ask)
	if err == nil && len(p.Tags) > 0 {
		err = r.OpenStack.Tag(ctx, made.ID, p.Tags)
	}
	return described(made), err
}

// RemovePort implements Cloud.
func (r *Real) RemovePort(ctx context.Context, id string) error {
	return r.OpenStack.Delete(ctx, "port", id)
}

// Ports implements Cloud.
func (r *Real) Ports(ctx context.Context) (all []Port, err error) {
	r.mu.Lock()
	networks := slices.Clone(r.networks)
	r.mu.Unlock()
	for _, n := range networks {
		list, err := r.OpenStack.Ports(ctx, n)
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			if !strings.HasPrefix(p.Owner, "network:") {
				all = append(all, described(p))
			}
		}
	}
	return all, nil
}

func described(p openstack.Port) Port {
	out := Port{
		ID: p.ID, Name: p.Name, Network: p.Network, Device: p.Device, Owner: p.Owner, MAC: p.MAC,
		Groups: p.Groups, Host: p.Host, Status: p.Status,
	}
	for _, f := range p.Fixed {
		out.Addresses = append(out.Addresses, Address{Subnet: f.Subnet, IP: f.IP})
	}
	return out
}

// Plugged implements Cloud.
func (r *Real) Plugged(ctx context.Context, host string) ([]ovn.Interface, error) {
	n := r.node(host)
	if n == nil {
		return nil, fmt.Errorf("host %s does not exist", host)
	}
	return ovn.Interfaces(ctx, n.OVSDB())
}

// Alive implements Cloud.
func (r *Real) Alive() error { return r.OpenStack.Alive() }

// Close implements Cloud.
func (r *Real) Close() error { return r.OpenStack.Close() }

var _ Cloud = (*Real)(nil)
