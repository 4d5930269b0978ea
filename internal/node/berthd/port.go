package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/nics"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source"
)

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
