package berthegress

import "time"

const (
	// lookInterval is how often connections are counted while the gateway ends.
	lookInterval = time.Second
	// lastMoments of the grace period are for the process to end by itself.
	lastMoments = 2 * time.Second
)

// end returns when nobody needs the gateway any more, or its grace period is over. All the while it serves as
// before and stays ready: a pod that is deleted and ready is one that ends and serves. Clients hear of that
// by the Egress's status, and begin no new connections by it.
func (a *agent) end() {
	a.mu.Lock()
	a.state.ending = true
	a.mu.Unlock()
	began := a.clock.Now()
	a.log.Info("ending: serving the connections that there are", "grace", a.cfg.GracePeriod)
	over := a.clock.After(max(0, a.cfg.GracePeriod-lastMoments))
	told := -1
	for {
		select {
		case <-over:
			a.log.Warn("the grace period is over", "connections", told)
			return
		case <-a.clock.After(lookInterval):
		}
		a.using.Lock()
		open, err := a.kernel.OpenConnections()
		a.using.Unlock()
		switch {
		case err != nil:
			a.log.Warn("cannot count connections", "err", err)
		case open == 0 && a.clock.Now().Sub(began) >= a.cfg.EndDelay:
			a.log.Info("no connection is left", "after", a.clock.Now().Sub(began).Round(time.Second))
			return
		case told < 0:
			a.log.Info("connections that are served to their end", "connections", open)
			told = open
		default:
			told = open
		}
	}
}
