package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/heartbeat"
)

// Run recovers, then serves behind the front until ctx ends, then drains and
// closes the front. Live pods are not touched by any of it. The error is nil
// after an orderly end.
func (d *Daemon) Run(ctx context.Context, front *Front) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The loops outlive ctx, so that running calls can finish while draining.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer front.Close()
	defer stopLoops()
	wg.Go(func() { d.reaper.run(loops) })
	wg.Go(func() { d.cooling.run(loops) })

	front.WaitingFor("comparing its records with the kernel")
	if err := d.recoverState(ctx); err != nil {
		return fmt.Errorf("recovering the node's state: %w", err)
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
	front.admit(d)
	wg.Go(func() {
		heartbeat.Run(ctx, front.Socket, d.Clock, func() bool { return d.status() == nil },
			func(err error) { d.Log.Warn("telling the plugin that this daemon lives", "err", err) })
	})
	d.Log.Info("serving", "socket", front.Socket, "attachments", len(d.Store.Records()))

	select {
	case err := <-front.failed:
		return err
	case <-ctx.Done():
	}
	d.drain(errDraining) // ADDs that wait for an address fail now
	front.drain(d.DrainTimeout)
	d.Log.Info("stopped serving")
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
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
