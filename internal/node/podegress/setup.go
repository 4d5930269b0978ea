package podegress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Kernel programs pods' network namespaces. Errors are those of package egressclient.
type Kernel interface {
	// Apply makes a namespace match a Setup, and Check returns how it differs.
	Apply(ctx context.Context, netnsPath string, s egressclient.Setup) error
	Check(ctx context.Context, netnsPath string, s egressclient.Setup) error
	// Forward turns IP forwarding on in a namespace, and Forwards returns an error if it is off.
	Forward(netnsPath string) error
	Forwards(netnsPath string) error
	// Tracked returns the connection tracking numbers of a namespace.
	Tracked(netnsPath string) (egressgateway.Tracked, error)
	// Supported returns an error if the node's kernel lacks a feature that tunnels need.
	Supported() error
}

// OfPods is the Kernel of this machine. Sysctls is the directory of its sysctl settings, /proc/sys if empty.
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

// isGateway reports whether the tunnels in a pod's namespace are a gateway's own. They have the same names as a client's,
// and this node neither compares nor removes them.
func isGateway(rec attachment.Record) bool {
	return rec.Egress != nil && rec.Egress.Forward && len(rec.Egress.Egresses) == 0
}

// tunnels sets up the client side of tunnels in pods' namespaces.
type tunnels struct {
	kernel Kernel
	port   uint16

	mu       sync.Mutex // guards networks
	networks []netip.Prefix
}

// SetClusterNetworks replaces Config.ClusterNetworks. It takes effect for running pods when they are next compared with
// their records.
func (t *tunnels) SetClusterNetworks(networks []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.networks = networks
}

func (t *tunnels) setup(rec attachment.Record) egressclient.Setup {
	t.mu.Lock()
	networks := t.networks
	t.mu.Unlock()
	return setupOf(rec, t.port, networks)
}

// Apply implements egresspart.Egress.
func (t *tunnels) Apply(ctx context.Context, rec attachment.Record) error {
	return t.each(rec, t.kernel.Forward, func(path string) error { return t.kernel.Apply(ctx, path, t.setup(rec)) })
}

// Check implements egresspart.Egress.
func (t *tunnels) Check(ctx context.Context, rec attachment.Record) error {
	return t.each(rec, t.kernel.Forwards, func(path string) error { return t.kernel.Check(ctx, path, t.setup(rec)) })
}

// each enables forwarding in the namespace of a gateway, and calls do for a client's setup, unless the tunnels in the
// namespace are a gateway's.
func (*tunnels) each(rec attachment.Record, forward, client func(path string) error) error {
	if rec.Egress != nil && rec.Egress.Forward {
		if err := forward(rec.Netns.Path); err != nil {
			return err
		}
	}
	if isGateway(rec) {
		return nil
	}
	return client(rec.Netns.Path)
}

// Clear implements egresspart.Egress. It leaves forwarding on.
func (t *tunnels) Clear(ctx context.Context, rec attachment.Record) error {
	if isGateway(rec) {
		return nil
	}
	rec.Egress = nil
	if err := t.kernel.Apply(ctx, rec.Netns.Path, t.setup(rec)); !errors.Is(err, datapath.ErrNoNetns) {
		return err
	}
	return nil
}

// Supported implements egresspart.Egress.
func (t *tunnels) Supported(context.Context) error { return t.kernel.Supported() }

// setupOf returns the setup of a record's namespace. Only the record and the daemon's settings determine it.
func setupOf(rec attachment.Record, port uint16, networks []netip.Prefix) egressclient.Setup {
	own := ownAddresses(rec)
	s := egressclient.Setup{Link: rec.Key.IfName, Addrs: own, NodeLocal: rec.Lease.NodeLocal, Port: port, ClusterNetworks: networks, Adopted: rec.Adopted != nil}
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

// egressOf returns the part of an Egress that a pod with these addresses can use: without destinations of a family that
// the pod lacks, unless it has a node-local address of that family, and without gateways at its own addresses, which
// would be a loop.
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
