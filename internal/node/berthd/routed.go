package berthd

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/pool"
)

const withdrawTimeout = 5 * time.Second // for the kernel, at shutdown

// routed is the mode of a node whose addresses come from pools. It needs no cloud; the node is
// identified by its name.
type routed struct {
	*node
	datapath *uplinks.Routed
}

// uplinks leaves IPv6 off: the first block with IPv6 turns it on.
func (m *routed) uplinks() datapath.Routed { return datapath.Routed{ExportTable: m.cfg.ExportTable} }

func (m *routed) check() error {
	config := m.datapathConfig()
	config.Uplinks = m.uplinks()
	if err := config.Validate(); err != nil {
		return fmt.Errorf("--export-table: %w", err)
	}
	return nil
}

func (m *routed) identify(context.Context) (string, error) { return m.cfg.NodeName, nil }

func (m *routed) setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error) {
	m.datapath = uplinks.NewRouted(kernel)
	return m.datapath, m.datapath.Setup(ctx, m.datapathConfig(), m.uplinks())
}

func (m *routed) newSource(context.Context) (source.Source, error) {
	var conflict func(attachment.Pod, string, string)
	if m.tell != nil {
		conflict = func(pod attachment.Pod, ifName, message string) {
			m.tell(podevents.News{Pod: pod, IfName: ifName, Kind: podevents.AddressShared, Cause: podevents.UsedElsewhere, Message: message})
		}
	}
	return pool.New(pool.Config{
		NodeName: m.cfg.NodeName, Kubeconfig: m.cfg.Kubeconfig, Datapath: m.datapath, StateDir: m.cfg.StateDir,
		Cooling: m.cfg.CoolingPeriod, Watermark: m.cfg.BlockWatermark, ReleaseDelay: m.cfg.BlockReleaseDelay, ClaimInterval: m.cfg.BlockClaimInterval,
		IgnoreUntold: m.cfg.IgnoreUntoldAnnotations, Conflict: conflict,
		Clock: m.clock, Logger: m.log, Observer: pool.NewMetrics(m.metrics.Registry),
	})
}

// end withdraws the routes of the node's blocks.
func (m *routed) end() error {
	if !m.cfg.WithdrawOnExit {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTimeout)
	defer cancel()
	if err := m.datapath.WithdrawBlocks(ctx); err != nil {
		return fmt.Errorf("withdrawing the routes of the node's blocks: %w", err)
	}
	m.log.Info("withdrew the routes of the node's blocks", "table", m.cfg.ExportTable)
	return nil
}
