package daemon

import (
	"context"
	"fmt"
	"time"
)

// How often the supply of addresses is looked at, for the condition, the mark
// and the installation. No pod waits for it.
const (
	supplyInterval = 5 * time.Second
	firstInterval  = 100 * time.Millisecond // until an address was usable once
)

// installInterval is how often an installation is looked at again: a node's
// image or another installer may replace it.
const installInterval = time.Minute

// supplyLoop keeps the supply condition, remembers the first usable address,
// and installs the plugin from then on, until ctx ends.
func (d *Daemon) supplyLoop(ctx context.Context) {
	var installAt time.Time
	for {
		d.lookAtSupply()
		wait := firstInterval
		if d.wasUsable() {
			wait = supplyInterval
			if now := d.Clock.Now(); d.Install != nil && !now.Before(installAt) && d.install(ctx) {
				installAt = now.Add(installInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(wait):
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

// install puts plugin and configuration in place, if they are not.
func (d *Daemon) install(ctx context.Context) bool {
	if err := d.Install(ctx); err != nil {
		d.conditions.set(ConditionInstalled, false, "Failed", err.Error())
		return false
	}
	d.conditions.set(ConditionInstalled, true, "InPlace", "")
	return true
}
