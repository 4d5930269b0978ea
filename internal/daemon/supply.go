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
	waiting := false
	for {
		waiting = d.lookAtSupply(waiting)
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

// lookAtSupply sets the condition and tells whether ADDs wait for an address.
// A wait is a matter for a person only when there was one a look before too.
func (d *Daemon) lookAtSupply(waited bool) (waiting bool) {
	if err := d.Source.Ready(); err != nil {
		d.conditions.set(ConditionSupply, false, "NoAddressYet", err.Error())
		return false
	}
	d.markUsable()
	snap := d.Source.Snapshot()
	for _, c := range snap.Conditions {
		d.conditions.set(c.Type, c.Healthy, c.Reason, c.Message)
	}
	switch {
	case snap.Waiting == 0:
		d.conditions.set(ConditionSupply, true, "Available", "")
	case waited && snap.LastError != "":
		d.conditions.set(ConditionSupply, false, "Exhausted", snap.LastError)
	case waited:
		d.conditions.set(ConditionSupply, false, "Waiting", fmt.Sprintf("%d ADDs wait for an address", snap.Waiting))
	}
	return snap.Waiting > 0
}

// install puts plugin and configuration in place, if they are not.
func (d *Daemon) install(ctx context.Context) bool {
	remark, err := d.Install(ctx)
	if err != nil {
		d.conditions.set(ConditionInstalled, false, "Failed", err.Error())
		return false
	}
	d.conditions.set(ConditionInstalled, true, "InPlace", remark)
	return true
}
