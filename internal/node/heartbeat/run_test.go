package heartbeat_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/heartbeat"
)

// bubbleClock is the clock of a synctest bubble.
type bubbleClock struct {
	clock.Real
	start time.Time
}

func (c bubbleClock) Boot() time.Duration { return time.Hour + time.Since(c.start) }

func TestRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		clk := bubbleClock{start: time.Now()}
		var good atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			heartbeat.Run(ctx, socket, clk, good.Load, func(err error) { t.Error(err) })
		}()
		// pass lets time pass and tells whether the heartbeat is recent then.
		pass := func(d time.Duration) bool {
			<-time.After(d)
			synctest.Wait()
			return heartbeat.Recent(socket, clk.Boot())
		}
		if pass(time.Minute) {
			t.Error("a daemon that was never good has a heartbeat")
		}
		good.Store(true)
		if !pass(heartbeat.Interval) || !pass(time.Hour) {
			t.Error("a good daemon has no heartbeat")
		}
		good.Store(false)
		if pass(heartbeat.Interval) {
			t.Error("a daemon that is not good any more has a heartbeat")
		}
		good.Store(true)
		pass(heartbeat.Interval)
		cancel()
		<-done
		if !pass(heartbeat.Grace - heartbeat.Interval - time.Second) {
			t.Error("a daemon that ended in order left no heartbeat")
		}
		if pass(heartbeat.Grace) {
			t.Error("its heartbeat goes on")
		}
	})
}

func TestRunSaysWhatGoesWrong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "gone", "berthd.sock")
	var failures []error
	heartbeat.Run(ctx, socket, clock.Real{}, func() bool { return true }, func(err error) {
		failures = append(failures, err)
		cancel()
	})
	if len(failures) == 0 || !errors.Is(failures[0], fs.ErrNotExist) {
		t.Errorf("failures %v, want that the directory is missing", failures)
	}
}
