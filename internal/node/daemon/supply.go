package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source"
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

// supply watches the source's supply of addresses.
type supply struct {
	source     source.Source
	conditions *conditions
	usable     *usableMark
	install    func(context.Context) (Installation, error) // may be nil
	clock      clock.Clock
}

// run keeps the supply condition, remembers the first usable address,
// and installs the plugin from then on, until ctx ends.
func (s *supply) run(ctx context.Context) {
	var installAt time.Time
	waiting := false
	for {
		waiting = s.look(waiting)
		wait := firstInterval
		if s.usable.isSet() {
			wait = supplyInterval
			if now := s.clock.Now(); s.install != nil && !now.Before(installAt) && s.installed(ctx) {
				installAt = now.Add(installInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(wait):
		}
	}
}

// look sets the condition and tells whether ADDs wait for an address.
// A wait is a matter for a person only when there was one a look before too.
func (s *supply) look(waited bool) (waiting bool) {
	if err := s.source.Ready(); err != nil {
		s.conditions.set(ConditionSupply, false, "NoAddressYet", err.Error())
		return false
	}
	s.usable.set()
	snap := s.source.Snapshot()
	for _, c := range snap.Conditions {
		s.conditions.set(c.Type, c.Healthy, c.Reason, c.Message)
	}
	switch {
	case snap.Waiting == 0:
		s.conditions.set(ConditionSupply, true, "Available", "")
	case waited && snap.LastError != "":
		s.conditions.set(ConditionSupply, false, "Exhausted", snap.LastError)
	case waited:
		s.conditions.set(ConditionSupply, false, "Waiting", fmt.Sprintf("%d ADDs wait for an address", snap.Waiting))
	}
	return snap.Waiting > 0
}

// installed puts plugin and configuration in place, if they are not, and tells
// whether it could.
func (s *supply) installed(ctx context.Context) bool {
	done, err := s.install(ctx)
	if ctx.Err() != nil {
		return false // the daemon ends, whatever came of it
	}
	if err != nil {
		s.conditions.set(ConditionInstalled, false, "Failed", err.Error())
		return false
	}
	s.conditions.set(ConditionInstalled, true, "InPlace", done.Remark)
	if done.LeftOut != "" {
		s.conditions.set(ConditionChain, false, "PluginLeftOut", done.LeftOut)
	} else {
		s.conditions.set(ConditionChain, true, "Complete", "")
	}
	return true
}
