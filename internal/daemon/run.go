package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/berthnet/berth/internal/rpc"
)

// Run recovers, then serves the plugin on l until ctx ends, then drains. It
// closes l. Live pods are not touched by any of it. The error is nil after an
// orderly end.
func (d *Daemon) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The loops outlive ctx, so that running calls can finish while draining.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopLoops()
	wg.Go(func() { d.reaper.run(loops) })
	wg.Go(func() { d.cooling.run(loops) })
	d.serveWatchers(loops, &wg)

	if err := d.recoverState(ctx); err != nil {
		return errors.Join(fmt.Errorf("recovering the node's state: %w", err), l.Close())
	}
	d.conditions.set(ConditionDataPath, true, "SetUp", "")
	wg.Go(func() {
		if err := d.Source.Run(loops); err != nil && loops.Err() == nil {
			cancel(fmt.Errorf("the address source ended: %w", err))
		}
	})
	wg.Go(func() { d.sweepLoop(loops) })
	wg.Go(func() { d.supplyLoop(loops) })
	wg.Go(func() { d.repairLoop(loops) })

	server, checks := d.newServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	d.serving.Store(true)
	d.Log.Info("serving", "socket", l.Addr().String(), "attachments", len(d.Store.Records()))
	select {
	case err := <-served:
		return fmt.Errorf("serving the plugin: %w", err)
	case <-ctx.Done():
	}
	d.serving.Store(false)
	checks.Shutdown()
	d.shutDown(server)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serveWatchers serves introspection and monitoring. Their end does not end the daemon.
func (d *Daemon) serveWatchers(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		if err := serveHTTP(ctx, d.Introspection, d.introspectionHandler()); err != nil {
			d.Log.Error("serving introspection", "err", err)
		}
	})
	wg.Go(func() {
		if err := serveHTTP(ctx, d.Monitoring, d.monitoringHandler()); err != nil {
			d.Log.Error("serving metrics", "err", err)
		}
	})
}

func (d *Daemon) newServer() (*grpc.Server, *health.Server) {
	server := grpc.NewServer(
		grpc.UnaryInterceptor(d.observe),
		grpc.MaxRecvMsgSize(16<<20), // a GC lists every attachment of the node
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	rpc.RegisterNodeServer(server, &service{daemon: d})
	checks := health.NewServer()
	checks.SetServingStatus(rpc.Node_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(server, checks)
	return server, checks
}

// shutDown fails the ADDs that wait for an address and lets calls that are at
// work on the kernel finish, for as long as the drain timeout allows.
func (d *Daemon) shutDown(server *grpc.Server) {
	d.drain(errDraining)
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-d.Clock.After(d.DrainTimeout):
		d.Log.Warn("calls did not end in time; what they left half done is finished at the next start", "timeout", d.DrainTimeout)
		server.Stop()
	}
	d.Log.Info("stopped serving")
}

// supplyInterval is how often the supply of addresses is looked at for the
// condition and the mark; nothing waits for it.
const supplyInterval = 5 * time.Second

// supplyLoop keeps the supply condition and remembers the first usable address.
func (d *Daemon) supplyLoop(ctx context.Context) {
	for {
		d.lookAtSupply()
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(supplyInterval):
		}
	}
}

func (d *Daemon) lookAtSupply() {
	if err := d.Source.Ready(); err != nil {
		d.conditions.set(ConditionSupply, false, "NoAddressYet", err.Error())
		return
	}
	d.markUsable()
	switch snap := d.Source.Snapshot(); {
	case snap.Waiting > 0 && snap.LastError != "":
		d.conditions.set(ConditionSupply, false, "Exhausted", snap.LastError)
	case snap.Waiting > 0:
		d.conditions.set(ConditionSupply, false, "Waiting", fmt.Sprintf("%d ADDs wait for an address", snap.Waiting))
	default:
		d.conditions.set(ConditionSupply, true, "Available", "")
	}
}
