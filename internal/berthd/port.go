package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/carrier"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/port"
)

// portMode is the mode of a node whose pods have ports of VPCs and no other interface:
// it knows no cloud, and is the node of its name.
type portMode struct{ *node }

func (m *portMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *portMode) setUp(ctx context.Context, kernel carrier.Node) (daemon.Kernel, error) {
	data := carrier.NewPorts(kernel)
	return data, data.Setup(ctx, m.datapathConfig())
}

func (m *portMode) newSource(context.Context) (source.Source, error) {
	return port.NewNone(m.ports.nics), nil
}
