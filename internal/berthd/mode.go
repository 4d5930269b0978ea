package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/source"
)

// modes are all there are, by --ipam. A new source of addresses is added here and
// in the settings.
var modes = map[string]func(*node) mode{
	config.IPAMENI:      func(n *node) mode { return &nodeMode{vpc{node: n}} },
	config.IPAMENIOperator: func(n *node) mode { return &operatorMode{vpc{node: n}} },
	config.IPAMPool:     func(n *node) mode { return &routed{node: n} },
}

// mode is what follows from where addresses come from.
type mode interface {
	// check finds settings that cannot work.
	check() error
	// identify finds out who this node is.
	identify(ctx context.Context) (instanceID string, err error)
	// setUp makes the data path ready for the source's addresses.
	setUp(ctx context.Context, kernel *datapath.Node) (network, error)
	// newSource makes the source of addresses.
	newSource(ctx context.Context) (supply, error)
	// follow keeps the data path to what changes around the node, until ctx ends.
	follow(ctx context.Context)
	// end leaves the node as another daemon, or nobody, is to find it.
	end() error
	// tells are the capabilities by which the runtime tells of pods.
	tells() []string
}

// What a mode has nothing to do about.
func (n *node) check() error           { return nil }
func (n *node) follow(context.Context) {}
func (n *node) end() error             { return nil }
func (n *node) tells() []string        { return nil }

// network is what a daemon asks of the data path.
type network interface {
	daemon.Kernel
	daemon.Upkeep
}

// supply is a source of addresses that looks again when links changed.
type supply interface {
	source.Source
	Kick()
}
