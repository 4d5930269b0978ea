package networkpolicy

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/policytable"
)

// endShare limits the share of time spent on listing connections, of which a node may have a million, to one in endShare.
const endShare = 10

// endAfterPods delays the listing of connections after a change of pods only, because a starting pod has no connections.
const endAfterPods = 50 * time.Millisecond

// looks lists connections, and ends those that policies no longer allow. A separate goroutine lists connections, because that takes
// milliseconds in which the policies of the next pod would wait. The rest belongs to the goroutine of Enforcer.Run.
type looks struct {
	kernel  Kernel
	insides *insides
	clock   clock.Clock
	log     *slog.Logger

	running sync.WaitGroup
	listed  chan *look // receives the look in progress; nil if there is none

	last   time.Time        // end of the last look
	took   time.Duration    // its duration
	due    <-chan time.Time // start of the next one; nil if not scheduled
	now    bool             // the next one starts without delay
	wanted bool             // pods, policies or sets have changed since the last one started
	found  *look            // a finished look whose connections have not been ended yet
	at     *view            // the policies that the kernel enforces; nil if unknown
	failed error            // of the last look
}

// look is one listing of connections.
type look struct {
	took   time.Duration
	open   []policytable.Connection
	inside map[string]insideConnections // by attachment
	err    error                        // of listing the node's connections
}

// insideConnections are the connections that a pod's table judges.
type insideConnections struct {
	kernel PodKernel
	open   []policytable.Connection
	err    error
}

// end ends listed connections that policies no longer allow. If there may be others by now, it lists connections again, now or later.
func (l *looks) end(v view) error {
	if l.found != nil {
		if l.failed = l.endFound(v); l.failed != nil {
			l.now = true
			return l.failed
		}
	}
	if l.listed != nil || !l.wanted && !l.now {
		return l.failed
	}
	now := l.clock.Now()
	wait := l.last.Add(endShare * l.took).Sub(now)
	if !l.now {
		wait = max(wait, endAfterPods)
	}
	if wait > 0 {
		if l.due == nil {
			l.due = l.clock.After(wait)
		}
		return l.failed
	}
	l.due, l.now, l.wanted = nil, false, false
	listed := make(chan *look, 1)
	l.listed = listed
	l.running.Go(func() {
		found := &look{inside: l.insides.connections()}
		found.open, found.err = l.kernel.Connections()
		found.took = l.clock.Now().Sub(now)
		listed <- found
	})
	return l.failed
}

// endFound ends those of the listed connections that policies deny.
func (l *looks) endFound(v view) error {
	found, began := l.found, l.clock.Now()
	l.found = nil
	n, err := 0, found.err
	if err == nil {
		n, err = l.kernel.End(found.open, v.allows)
	}
	err = errors.Join(err, l.insides.end(v, found.inside))
	l.last = l.clock.Now()
	l.took = found.took + l.last.Sub(began)
	if n > 0 {
		l.log.Info("ended connections that policies no longer allow", "ended", n)
	}
	if err != nil {
		return fmt.Errorf("end connections: %w", err)
	}
	return failpoint.Hit("networkpolicy.ended")
}
