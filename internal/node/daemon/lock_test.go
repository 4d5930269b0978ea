package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// A second daemon fails immediately and names the first one's process, unless the
// first one is shutting down.
func TestTwoDaemonsCannotServeOneNode(t *testing.T) {
	taken := fmt.Sprintf("another berthd (process %d) serves ", os.Getpid())
	for name, tt := range map[string]struct {
		ending  bool          // the first announced its shutdown
		ends    time.Duration // when the first releases the lock; 0: never
		cancel  time.Duration // when the second is cancelled; 0: never
		ok      bool          // the second gets the lock
		noLater time.Duration
	}{
		"first keeps running":         {noLater: otherWait},
		"first is killed":             {ends: otherWait / 2, ok: true, noLater: otherWait},
		"first shuts down":            {ending: true, ends: 6 * time.Second, ok: true, noLater: 6*time.Second + lockRetry},
		"first hangs during shutdown": {ending: true, noLater: endingWait},
		"second is cancelled":         {ending: true, cancel: 3 * time.Second, noLater: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				acquire := func(ctx context.Context) (*Lock, error) {
					return AcquireLock(ctx, dir, clock.Real{}, slog.New(slog.DiscardHandler))
				}
				first, err := acquire(t.Context())
				must(t, err)
				if tt.ending {
					err = first.Ending()
				}
				if tt.ends > 0 {
					time.AfterFunc(tt.ends, func() { _ = first.Release() })
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				start := time.Now()
				second, lockErr := acquire(ctx)
				took := time.Since(start)
				if err != nil || (lockErr == nil) != tt.ok || took > tt.noLater {
					t.Errorf("AcquireLock() after %s = %v (%v), want success: %t within %s", took, lockErr, err, tt.ok, tt.noLater)
				}
				if lockErr != nil && !strings.Contains(lockErr.Error(), taken+dir) {
					t.Errorf("error = %v, want one that names the process and %s", lockErr, dir)
				}
				if second != nil {
					err = second.Release()
				}
				if err = errors.Join(err, first.Release()); err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}
