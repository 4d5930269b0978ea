package berthd

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/node/nics"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/source/nodelocal"
	"github.com/berthnet/berth/internal/source/nodenetworksupplier"
	"github.com/berthnet/berth/internal/source/none"
	"github.com/berthnet/berth/internal/source/pool"
)

// modes are all modes, by the value of --ipam. A new address source needs an entry here and a value of the
// setting.
var modes = map[string]struct {
	of        func(*node) mode
	reference source.Reference // metrics of its source
}{
	config.IPAMENI:         {func(n *node) mode { return &nodeMode{vpc: vpc{node: n}} }, enisource.Reference},
	config.IPAMENIOperator: {func(n *node) mode { return newOperatorMode(n) }, nodenetworksupplier.Reference},
	config.IPAMPool:        {func(n *node) mode { return &routed{node: n} }, pool.Reference},
	config.IPAMPort:        {func(n *node) mode { return &portMode{node: n} }, nics.Reference},
	config.IPAMNone:        {func(n *node) mode { return &noneMode{node: n} }, source.Reference{}},
}

// WriteMetricsReference writes the metrics reference of all modes.
func WriteMetricsReference(w io.Writer) error {
	var all []source.Reference
	for _, ipam := range slices.Sorted(maps.Keys(modes)) {
		all = append(all, modes[ipam].reference)
	}
	all = append(all, nodelocal.Reference, podegress.Reference, networkpolicy.Reference)
	return daemon.WriteMetricsReference(w, all...)
}

// These data paths need upkeep.
var _, _, _ daemon.Upkeep = (*uplinks.VPC)(nil), (*uplinks.Routed)(nil), (*uplinks.Ports)(nil)

// mode is the behaviour that depends on --ipam.
type mode interface {
	// check rejects settings that cannot work.
	check() error
	// identify returns the identity of the node.
	identify(ctx context.Context) (instanceID string, err error)
	// setUp sets up the data path. The result may also implement daemon.Upkeep.
	setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error)
	// newSource creates the source of addresses.
	newSource(ctx context.Context) (source.Source, error)
	// follow updates the data path when its environment changes, until ctx ends.
	follow(ctx context.Context)
	// needIPv6 turns IPv6 on, if it is off, before a pod gets an IPv6 address that the node routes but
	// that does not come from the source.
	needIPv6(ctx context.Context) error
	// end cleans up at shutdown.
	end() error
}

// Default implementations for modes.
func (n *node) check() error                   { return nil }
func (n *node) follow(context.Context)         {}
func (n *node) needIPv6(context.Context) error { return nil }
func (n *node) end() error                     { return nil }

// noneMode is for pods whose interfaces another network creates; berth runs after that network's plugins and
// adds egress. It does not touch the node itself.
type noneMode struct{ *node }

func (m *noneMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *noneMode) setUp(context.Context, uplinks.Node) (daemon.Kernel, error) {
	return uplinks.None{}, nil
}

func (m *noneMode) newSource(context.Context) (source.Source, error) { return none.Source{}, nil }

// portMode is for pods whose only interfaces are ports of VPCs. It needs no cloud; the node is identified
// by its name.
type portMode struct{ *node }

func (m *portMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *portMode) setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error) {
	data := uplinks.NewPorts(kernel)
	return data, data.Setup(ctx, m.datapathConfig())
}

func (m *portMode) newSource(context.Context) (source.Source, error) {
	return nics.NewNone(m.ports.nics), nil
}
