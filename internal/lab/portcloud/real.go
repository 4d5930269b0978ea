package portcloud

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab/network/ovn"
	"github.com/berthnet/berth/internal/lab/openstack"
)

// Real is the real Neutron behind the real Keystone, with OVN.
type Real struct {
	cloud *openstack.Cloud
	user  openstack.User

	mu       sync.Mutex // guards networks
	networks []string   // IDs
}

// NewReal starts one without networks.
func NewReal(ctx context.Context, o Options) (Cloud, error) {
	c, err := openstack.Start(ctx, openstack.Options{Dir: filepath.Join(o.Dir, "openstack"), Netns: o.Netns, Backend: openstack.OVN, Keystone: true, Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	r := &Real{cloud: c}
	if r.user, err = c.AddUser(ctx, user, openstack.Role); err != nil {
		_ = c.Close()
		return nil, err
	}
	return r, nil
}

// Access implements Cloud.
func (r *Real) Access() Access {
	return Access{
		Provider: v1alpha1.ProviderNeutron,
		Endpoint: r.cloud.Endpoint(),
		Secret:   map[string]string{"username": r.user.Name, "password": r.user.Password, "project": r.user.Project},
	}
}

// Join implements Cloud.
func (r *Real) Join(ctx context.Context, h Host) (Joined, error) {
	n, err := r.cloud.Join(ctx, h.Name, h.Netns)
	if err != nil {
		return Joined{}, err
	}
	return Joined{OVSDB: n.OVSDB()}, nil
}

func (r *Real) node(host string) *openstack.Node {
	for _, n := range r.cloud.Nodes() {
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
	made, err := r.cloud.AddNetwork(ctx, openstack.Network{Name: n.Name})
	if err != nil {
		return n, err
	}
	r.mu.Lock()
	r.networks = append(r.networks, made.ID)
	r.mu.Unlock()
	n.ID, n.Subnets = made.ID, slices.Clone(n.Subnets)
	for i, s := range n.Subnets {
		sub, err := r.cloud.AddSubnet(ctx, openstack.Subnet{Name: s.Name, Network: n.ID, CIDR: s.CIDR, Gateway: s.Gateway()})
		if err != nil {
			return n, err
		}
		n.Subnets[i].ID = sub.ID
	}
	return n, nil
}

// AddGroup implements Cloud.
func (r *Real) AddGroup(ctx context.Context, name string, in ...Rule) (id string, err error) {
	g, err := r.cloud.AddGroup(ctx, name)
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
	_, err := r.cloud.AddRule(ctx, openstack.Rule{
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
	made, err := r.cloud.AddPort(ctx, ask)
	return described(made), err
}

// RemovePort implements Cloud.
func (r *Real) RemovePort(ctx context.Context, id string) error {
	return r.cloud.Delete(ctx, "port", id)
}

// Ports implements Cloud.
func (r *Real) Ports(ctx context.Context) (all []Port, err error) {
	r.mu.Lock()
	networks := slices.Clone(r.networks)
	r.mu.Unlock()
	for _, n := range networks {
		list, err := r.cloud.Ports(ctx, n)
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
		return nil, fmt.Errorf("no host %s", host)
	}
	return ovn.Interfaces(ctx, n.OVSDB())
}

// Alive implements Cloud.
func (r *Real) Alive() error { return r.cloud.Alive() }

// Close implements Cloud.
func (r *Real) Close() error { return r.cloud.Close() }

var _ Cloud = (*Real)(nil)
