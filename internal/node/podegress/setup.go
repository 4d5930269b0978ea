package podegress

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Kernel is the kernel in pods' network namespaces. Errors of package client are told apart.
type Kernel interface {
	// Apply makes a namespace as a Setup says, and Check tells how it differs.
	Apply(ctx context.Context, netnsPath string, s egressclient.Setup) error
	Check(ctx context.Context, netnsPath string, s egressclient.Setup) error
	// Forward has a namespace pass on packets, and Forwards tells why it does not.
	Forward(netnsPath string) error
	Forwards(netnsPath string) error
	// Tracked is what connection tracking says in a namespace.
	Tracked(netnsPath string) (egressgateway.Tracked, error)
	// Supported tells whether the node's kernel has what tunnels need.
	Supported() error
}

// OfPods is the Kernel that there is. Sysctls is the folder where its settings are written,
// /proc/sys if empty.
type OfPods struct{ Sysctls string }

// Apply implements Kernel.
func (OfPods) Apply(ctx context.Context, netnsPath string, s egressclient.Setup) error {
	return egressclient.Apply(ctx, netnsPath, s)
}

// Check implements Kernel.
func (OfPods) Check(ctx context.Context, netnsPath string, s egressclient.Setup) error {
	return egressclient.Check(ctx, netnsPath, s)
}

// Forward implements Kernel.
func (k OfPods) Forward(netnsPath string) error {
	return datapath.SetForwarding(netnsPath, k.Sysctls)
}

// Forwards implements Kernel.
func (OfPods) Forwards(netnsPath string) error { return datapath.CheckForwarding(netnsPath) }

// Tracked implements Kernel.
func (OfPods) Tracked(netnsPath string) (egressgateway.Tracked, error) {
	return egressgateway.TrackedAt(netnsPath)
}

// Supported implements Kernel.
func (OfPods) Supported() error { return egressclient.Supported() }

// isGateway tells whether the tunnels in a pod's namespace are a gateway's own, which have the
// names of a client's: they are not this node's to compare or take away.
func isGateway(rec attachment.Record) bool {
	return rec.Egress != nil && rec.Egress.Forward && len(rec.Egress.Egresses) == 0
}

// Apply implements daemon.Egress.
func (c *Clients) Apply(ctx context.Context, rec attachment.Record) error {
	if rec.Egress != nil && rec.Egress.Forward {
		if err := c.cfg.Kernel.Forward(rec.Netns.Path); err != nil {
			return err
		}
	}
	if isGateway(rec) {
		return nil
	}
	return c.cfg.Kernel.Apply(ctx, rec.Netns.Path, c.setup(rec))
}

// Check implements daemon.Egress.
func (c *Clients) Check(ctx context.Context, rec attachment.Record) error {
	if rec.Egress != nil && rec.Egress.Forward {
		if err := c.cfg.Kernel.Forwards(rec.Netns.Path); err != nil {
			return err
		}
	}
	if isGateway(rec) {
		return nil
	}
	return c.cfg.Kernel.Check(ctx, rec.Netns.Path, c.setup(rec))
}

// Clear implements daemon.Egress. That a namespace forwards goes with it.
func (c *Clients) Clear(ctx context.Context, rec attachment.Record) error {
	if isGateway(rec) {
		return nil
	}
	rec.Egress = nil
	if err := c.cfg.Kernel.Apply(ctx, rec.Netns.Path, c.setup(rec)); !errors.Is(err, datapath.ErrNoNetns) {
		return err
	}
	return nil
}

// Supported implements daemon.Egress.
func (c *Clients) Supported(context.Context) error { return c.cfg.Kernel.Supported() }

// SetClusterNetworks replaces Config.ClusterNetworks. Pods that run get them when they are next
// compared with their records.
func (c *Clients) SetClusterNetworks(networks []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusterNetworks = networks
}

func (c *Clients) setup(rec attachment.Record) egressclient.Setup {
	c.mu.Lock()
	networks := c.clusterNetworks
	c.mu.Unlock()
	return setupOf(rec, c.cfg.Port, networks)
}

// setupOf is what a record asks for in its pod's namespace. It follows from the record and the
// daemon's settings alone.
func setupOf(rec attachment.Record, port uint16, networks []netip.Prefix) egressclient.Setup {
	own := ownAddresses(rec)
	s := egressclient.Setup{Link: rec.Key.IfName, Addrs: own, NodeLocal: rec.Lease.NodeLocal, Port: port, ClusterNetworks: networks}
	for _, a := range slices.Concat(rec.OwnAddrs(), rec.OtherAddrs()) {
		if !slices.Contains(own, a) {
			s.Others = append(s.Others, a)
		}
	}
	if rec.Egress == nil {
		return s
	}
	for _, u := range rec.Egress.Egresses {
		s.Egresses = append(s.Egresses, egressOf(u, own, rec.Lease.NodeLocal))
	}
	return s
}

// egressOf is an Egress as a pod with some addresses of its own can use it: a destination of a
// family that the pod lacks is out of its reach anyhow, unless a node-local address takes it there,
// and a gateway at an address of the pod itself would lead in a circle.
func egressOf(u attachment.UsedEgress, own []netip.Addr, nodeLocal netip.Addr) egressclient.Egress {
	foreign := func(a netip.Addr) bool {
		return !slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	}
	inReach := func(a netip.Addr) bool { return nodeLocal.IsValid() && nodeLocal.Is4() == a.Is4() }
	unusable := func(a netip.Addr) bool { return foreign(a) || slices.Contains(own, a) }
	e := egressclient.Egress{
		Name: u.Namespace + "/" + u.Name, SourcePortAuto: u.SourcePortAuto, OriginatingOnly: u.OriginatingOnly,
		Destinations: slices.DeleteFunc(slices.Clone(u.Destinations), func(p netip.Prefix) bool { return foreign(p.Addr()) && !inReach(p.Addr()) }),
		Service:      slices.Clone(u.Service),
	}
	for _, g := range u.Gateways {
		addrs := slices.DeleteFunc(slices.Clone(g.Addresses), unusable)
		if len(addrs) > 0 {
			e.Gateways = append(e.Gateways, egressclient.Gateway{ID: g.ID, Addrs: addrs, Ending: g.Ending, Chosen: g.Chosen})
		}
	}
	return e
}
