package berthd

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/daemon"
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

// modes are all there are, by --ipam. A new source of addresses is added here and
// in the settings.
var modes = map[string]struct {
	of        func(*node) mode
	reference source.Reference // what its source adds to the page of metrics
}{
	config.IPAMENI:         {func(n *node) mode { return &nodeMode{vpc: vpc{node: n}} }, enisource.Reference},
	config.IPAMENIOperator: {func(n *node) mode { return newOperatorMode(n) }, nodenetworksupplier.Reference},
	config.IPAMPool:        {func(n *node) mode { return &routed{node: n} }, pool.Reference},
	config.IPAMPort:        {func(n *node) mode { return &portMode{node: n} }, nics.Reference},
	config.IPAMNone:        {func(n *node) mode { return &noneMode{node: n} }, source.Reference{}},
}

// WriteMetricsReference writes the page of metrics, with those of all modes.
func WriteMetricsReference(w io.Writer) error {
	var all []source.Reference
	for _, ipam := range slices.Sorted(maps.Keys(modes)) {
		all = append(all, modes[ipam].reference)
	}
	all = append(all, nodelocal.Reference, podegress.Reference)
	return daemon.WriteMetricsReference(w, all...)
}

// The data paths of nodes with addresses or ports of their own are kept up.
var _, _, _ daemon.Upkeep = (*uplinks.VPC)(nil), (*uplinks.Routed)(nil), (*uplinks.Ports)(nil)

// mode is what follows from where addresses come from.
type mode interface {
	// check finds settings that cannot work.
	check() error
	// identify finds out who this node is.
	identify(ctx context.Context) (instanceID string, err error)
	// setUp makes the data path ready for the source's addresses.
	// What it returns may be a daemon.Upkeep too.
	setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error)
	// newSource makes the source of addresses.
	newSource(ctx context.Context) (source.Source, error)
	// follow keeps the data path to what changes around the node, until ctx ends.
	follow(ctx context.Context)
	// needIPv6 turns IPv6 on, unless it is, before a pod gets an address of it that is not the source's
	// and that the node routes to.
	needIPv6(ctx context.Context) error
	// end leaves the node as another daemon, or nobody, is to find it.
	end() error
}

// What a mode has nothing to do about.
func (n *node) check() error                   { return nil }
func (n *node) follow(context.Context)         {}
func (n *node) needIPv6(context.Context) error { return nil }
func (n *node) end() error                     { return nil }

// noneMode is the mode of a node whose pods' interfaces are another network's, after whose
// plugins berth is called, for egress: nothing of the node itself is touched.
type noneMode struct{ *node }

func (m *noneMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *noneMode) setUp(context.Context, uplinks.Node) (daemon.Kernel, error) {
	return uplinks.None{}, nil
}

func (m *noneMode) newSource(context.Context) (source.Source, error) { return none.Source{}, nil }

// portMode is the mode of a node whose pods have ports of VPCs and no other interface:
// it knows no cloud, and is the node of its name.
type portMode struct{ *node }

func (m *portMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *portMode) setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error) {
	data := uplinks.NewPorts(kernel)
	return data, data.Setup(ctx, m.datapathConfig())
}

func (m *portMode) newSource(context.Context) (source.Source, error) {
	return nics.NewNone(m.ports.nics), nil
}
