package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/none"
)

// noneMode is the mode of a node whose pods' interfaces are another network's, after whose
// plugins berth is called, for egress: nothing of the node itself is touched.
type noneMode struct{ *node }

func (m *noneMode) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *noneMode) setUp(context.Context, uplinks.Node) (daemon.Kernel, error) {
	return uplinks.None{}, nil
}

func (m *noneMode) newSource(context.Context) (source.Source, error) { return none.Source{}, nil }
