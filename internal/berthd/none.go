package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/carrier"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/none"
)

// noneMode is the mode of a node whose pods' interfaces are another network's, after whose
// plugins berth is called, for egress: nothing of the node itself is touched.
type noneMode struct{ *node }

func (m *noneMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *noneMode) setUp(context.Context, carrier.Node) (daemon.Kernel, error) {
	return carrier.None{}, nil
}

func (m *noneMode) newSource(context.Context) (source.Source, error) { return none.Source{}, nil }
