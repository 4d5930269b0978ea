package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/heartbeat"
)

// Run recovers, then serves behind the front until ctx ends, then drains and closes the front. Running
// pods are not affected. The error is nil after an orderly shutdown.
func (d *Daemon) Run(ctx context.Context, front *Front) error {
	ctx, cancel := context.WithCancelCause(ctx)
	// The loops outlive ctx, so that calls in flight can finish while draining.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer front.Close()
	defer stopLoops()
	defer cancel(nil) // cancel before waiting, so that the heartbeat ends
	wg.Go(func() { d.reaper.run(loops) })
	wg.Go(func() { d.cooling.run(loops) })

	front.WaitingFor("comparing its records with the kernel")
	if err := d.recoverState(ctx); err != nil {
		return fmt.Errorf("recovering the node's state: %w", err)
	}
	d.conditions.set(ConditionDataPath, true, "SetUp", "")
	for _, c := range d.Fixed {
		d.conditions.set(c.Type, c.Healthy, c.Reason, c.Message)
	}
	if d.repairer != nil {
		// Before the source may assign or release an address that somebody has.
		if err := d.repairer.lookAtAddresses(ctx); err != nil {
			return fmt.Errorf("comparing the node's addresses with those for pods: %w", err)
		}
	}
	wg.Go(func() {
		if err := d.Source.Run(loops); err != nil && loops.Err() == nil {
			cancel(fmt.Errorf("the address source stopped: %w", err))
		}
	})
	for _, p := range d.Parts {
		wg.Go(func() {
			if err := p.Run(loops); err != nil && loops.Err() == nil {
				cancel(fmt.Errorf("the %s controller stopped: %w", p.About().Name, err))
			}
		})
	}
	for _, k := range d.keepers {
		wg.Go(func() { k.run(loops) })
	}
	wg.Go(func() { d.sweeper.run(loops) })
	wg.Go(func() { d.writable.run(loops) })
	wg.Go(func() { d.supply.run(loops) })
	if d.repairer != nil {
		d.repairer.lookAtARP()
		wg.Go(func() { d.repairer.run(loops) })
	}
	front.admit(d)
	wg.Go(func() {
		heartbeat.Run(ctx, front.Socket, d.Clock, func() bool { return d.status() == nil },
			func(err error) { d.Log.Warn("writing the heartbeat failed", "err", err) })
	})
	d.Log.Info("serving", "socket", front.Socket, "attachments", len(d.Store.Records()))

	select {
	case err := <-front.failed:
		return err
	case <-ctx.Done():
	}
	d.drain(part.ErrDraining) // waiting ADDs fail now
	front.drain(d.DrainTimeout)
	d.Log.Info("stopped serving")
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
