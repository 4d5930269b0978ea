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

// endShare is which part of the time may be spent on looking at connections, of which a node may have a million.
const endShare = 10

// endAfterPods is how long a look at connections waits after a change of pods alone, since a pod that starts has none.
const endAfterPods = 50 * time.Millisecond

// looks are looks at connections, to end those that policies forbid by now. Connections are listed in a goroutine of their own: that takes
// milliseconds, in which the next pod's policies would wait. The rest belongs to the goroutine of Enforcer.Run.
type looks struct {
	kernel  Kernel
	insides *insides
	clock   clock.Clock
	log     *slog.Logger

	running sync.WaitGroup
	listed  chan *look // receives the look that is under way; nil: none is

	last   time.Time        // when one ended
	took   time.Duration    // that one
	due    <-chan time.Time // when the next one begins; nil: it is not known
	now    bool             // it begins without delay
	wanted bool             // pods, policies or sets changed since one began
	found  *look            // that has listed connections
	at     *view            // what the kernel enforces; nil: it is unknown
	failed error            // of the last look
}

// look is one look at connections.
type look struct {
	took   time.Duration
	open   []policytable.Connection
	inside map[string]insideConnections // by attachment
	err    error                        // why connections of the node are not known
}

// insideConnections are those that a pod's table judges.
type insideConnections struct {
	kernel PodKernel
	open   []policytable.Connection
	err    error
}

// end ends connections that policies forbid by now, if it is known which there are, and lists them now or later if there may be others since.
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

// endFound ends connections of those that were found.
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
		l.log.Info("policies forbid connections that were open", "ended", n)
	}
	if err != nil {
		return fmt.Errorf("end connections: %w", err)
	}
	return failpoint.Hit("networkpolicy.ended")
}
