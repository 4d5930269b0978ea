package portcloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/ovn"
)

// Berth's tags on ENIs that are ports (docs/guides/ports/README.md).
const (
	tagNIC      = "berth.dev/nic"
	tagOwner    = "berth.dev/owner"
	ownerOfNICs = "berth-nic"
	// berthOwner is the device owner of Berth's ports in other clouds.
	berthOwner = "compute:berth"
)

// Branches is the lab's EC2 as a provider of ports: ENIs that are branches of the nodes' trunks or available. The fabric
// carries their packets, and enforces their security groups.
type Branches struct {
	ec2 *vpc.Cloud

	mu    sync.Mutex      // guards hosts
	hosts map[string]Host // by name
}

// NewBranches returns the lab's EC2 as a provider of ports.
func NewBranches(_ context.Context, o Options) (Cloud, error) {
	if o.EC2 == nil {
		return nil, errors.New("ports that are branches of ENIs: this lab has no EC2")
	}
	o.Progress("ports are branches of the nodes' trunks in the lab's EC2")
	return &Branches{ec2: o.EC2, hosts: map[string]Host{}}, nil
}

// Access implements Cloud.
func (b *Branches) Access() Access { return Access{Provider: v1alpha1.ProviderEC2} }

// Join implements Cloud.
func (b *Branches) Join(_ context.Context, h Host) (Joined, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts[h.Name] = h
	return Joined{}, nil
}

// Leave implements Cloud.
func (b *Branches) Leave(host string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.hosts, host)
	return nil
}

// AddNetwork implements Cloud. It creates nothing: the network is the existing VPC with this name, or the first one.
func (b *Branches) AddNetwork(_ context.Context, n Network) (Network, error) {
	books := b.ec2.Snapshot()
	i := slices.IndexFunc(books.VPCs, func(v vpc.VPC) bool { return n.Name == "" || v.Name == n.Name })
	if i < 0 {
		return n, fmt.Errorf("EC2 has no VPC named %q", n.Name)
	}
	n.ID, n.Name, n.Subnets = books.VPCs[i].ID, books.VPCs[i].Name, nil
	for _, s := range books.Subnets {
		if s.VPCID == n.ID {
			cidr := s.CIDR
			if s.IPv6Native() {
				cidr = s.IPv6
			}
			n.Subnets = append(n.Subnets, Subnet{ID: s.ID, Name: s.Name, CIDR: cidr})
		}
	}
	return n, nil
}

// AddGroup implements Cloud, in the first VPC, with the tags of the existing groups: an operator may only use those of its
// cluster.
func (b *Branches) AddGroup(_ context.Context, name string, in ...Rule) (id string, err error) {
	books := b.ec2.Snapshot()
	g := vpc.SecurityGroup{Name: name, Description: name, VPCID: books.VPCs[0].ID}
	for _, other := range books.Groups {
		if other.VPCID == g.VPCID && len(other.Tags) > 0 {
			g.Tags = maps.Clone(other.Tags)
		}
	}
	g.Egress = []vpc.Rule{{Protocol: "-1", CIDRs: anywhere}}
	for _, r := range in {
		g.Ingress = append(g.Ingress, ruleOf(r))
	}
	return b.ec2.AddSecurityGroup(g)
}

// Allow implements Cloud.
func (b *Branches) Allow(_ context.Context, group string, in Rule) error {
	return b.ec2.Authorize(group, ruleOf(in))
}

var anywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func ruleOf(r Rule) vpc.Rule {
	out := vpc.Rule{Protocol: r.Protocol, CIDRs: anywhere}
	switch {
	case r.Protocol == "icmp":
		out.FromPort, out.ToPort, out.CIDRs = -1, -1, anywhere[:1]
	case r.Port != 0:
		out.FromPort, out.ToPort = int(r.Port), int(r.Port)
	default:
		out.ToPort = 1<<16 - 1
	}
	return out
}

// AddPort implements Cloud.
func (b *Branches) AddPort(_ context.Context, p Port) (Port, error) {
	r := vpc.CreateRequest{Groups: p.Groups, Description: p.Name}
	if len(p.Addresses) != 1 {
		return Port{}, fmt.Errorf("port with %d addresses: want one, with a subnet", len(p.Addresses))
	}
	r.SubnetID, r.Primary = p.Addresses[0].Subnet, p.Addresses[0].IP
	e, err := b.ec2.ENIs.Create(r)
	if err != nil {
		return Port{}, err
	}
	return portOf(e, b.ec2.Snapshot()), nil
}

// RemovePort implements Cloud.
func (b *Branches) RemovePort(_ context.Context, id string) error {
	if _, there := b.ec2.Snapshot().ENI(id); !there {
		return nil
	}
	return b.ec2.ENIs.Delete(id)
}

// Ports implements Cloud.
func (b *Branches) Ports(context.Context) (all []Port, err error) {
	books := b.ec2.Snapshot()
	for _, e := range books.ENIs {
		if e.Attachment == nil && e.Type == "interface" {
			all = append(all, portOf(e, books))
		}
	}
	return all, nil
}

// IsBerths reports whether an ENI is a port of Berth, according to its tags.
func IsBerths(e vpc.ENI) bool { return e.Tags[tagOwner] == ownerOfNICs }

// portOf returns an ENI as a port, with its addresses of both families. The host of a branch is the name of the node that
// has the trunk.
func portOf(e vpc.ENI, books vpc.Snapshot) Port {
	p := Port{
		ID: e.ID, Name: e.Description, Network: e.VPCID, Device: e.Tags[tagNIC], MAC: e.MAC.String(),
		Groups: e.Groups, Status: "DOWN",
	}
	for _, a := range e.Own() {
		p.Addresses = append(p.Addresses, Address{Subnet: e.SubnetID, IP: a})
	}
	if IsBerths(e) {
		p.Owner = berthOwner
	}
	if e.Trunk == nil {
		return p
	}
	p.Status = "ACTIVE"
	if t, _ := books.ENI(e.Trunk.TrunkID); t.Attachment != nil {
		i, _ := books.Instance(t.Attachment.InstanceID)
		p.Host = i.Name
	}
	return p
}

// Plugged implements Cloud: it returns the VLANs in a host's pods, and Berth's VLANs on the host itself, which routes to
// the pods. A VLAN that differs from that of its port, or is not on the trunk, is an error.
func (b *Branches) Plugged(_ context.Context, host string) (all []ovn.Interface, err error) {
	b.mu.Lock()
	h, there := b.hosts[host]
	b.mu.Unlock()
	if !there {
		return nil, fmt.Errorf("host %s does not exist", host)
	}
	pods, err := ns.List(h.Pods)
	if err != nil {
		return nil, err
	}
	all, err = b.plugged(h, h.Netns, "", plug.RoutedVLAN)
	for _, pod := range pods {
		if err != nil {
			return nil, err
		}
		var more []ovn.Interface
		more, err = b.plugged(h, ns.Path(pod), pod+"/", plug.VLAN)
		all = append(all, more...)
	}
	return all, err
}

// plugged returns the VLANs in one of a host's network namespaces whose names start with a prefix. All of them must have
// one of the kinds.
func (b *Branches) plugged(h Host, path, prefix string, kind plug.Kind) (all []ovn.Interface, err error) {
	vlans, err := vlansIn(path)
	if err != nil {
		return nil, err
	}
	books := b.ec2.Snapshot()
	for _, v := range vlans {
		if path == h.Netns && v.Group != plug.LinkGroup {
			continue // a machine may have others
		}
		port, ok := plug.ParseMark(v.Alias)
		if !ok || port.Kind != kind {
			return nil, fmt.Errorf("%s%s has the alias %q, want one of %s", prefix, v.Name, v.Alias, kind)
		}
		e, _ := books.ENI(port.PortID)
		if err := carries(h, v, e, books); err != nil {
			return nil, fmt.Errorf("%s%s, for port %s: %w", prefix, v.Name, port.PortID, err)
		}
		all = append(all, ovn.Interface{Link: prefix + v.Name, Port: port.PortID})
	}
	return all, nil
}

// vlansIn returns the VLANs in a network namespace, or none if it is gone.
func vlansIn(path string) (vlans []*netlink.Vlan, err error) {
	err = ns.Netlink(path, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		for _, l := range links {
			if v, ok := l.(*netlink.Vlan); ok {
				vlans = append(vlans, v)
			}
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list links of %s: %w", path, err)
	}
	return vlans, nil
}

// carries returns an error unless a VLAN carries a branch's packets on a host.
func carries(h Host, v *netlink.Vlan, e vpc.ENI, books vpc.Snapshot) error {
	if e.Trunk == nil || e.Trunk.VLAN != v.VlanId {
		return fmt.Errorf("VLAN is %d, but EC2 has the branch as %+v", v.VlanId, e.Trunk)
	}
	t, _ := books.ENI(e.Trunk.TrunkID)
	return ns.Netlink(h.Netns, func(n *netlink.Handle) error {
		l, err := n.LinkByIndex(v.ParentIndex)
		if err != nil {
			return fmt.Errorf("find its trunk's link on %s: %w", h.Name, err)
		}
		if mac := l.Attrs().HardwareAddr; !strings.EqualFold(mac.String(), t.MAC.String()) {
			return fmt.Errorf("VLAN is on %s with %s, but its trunk %s has %s", l.Attrs().Name, mac, t.ID, t.MAC)
		}
		return nil
	})
}

// Alive implements Cloud.
func (b *Branches) Alive() error { return nil }

// Close implements Cloud: EC2 is the lab's.
func (b *Branches) Close() error { return nil }

var _ Cloud = (*Branches)(nil)
