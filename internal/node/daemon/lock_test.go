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

// TestTwoDaemonsCannotServeOneNode: a second daemon fails at once and names the process, unless the
// first is shutting down.
func TestTwoDaemonsCannotServeOneNode(t *testing.T) {
	taken := fmt.Sprintf("another berthd (process %d) serves ", os.Getpid())
	for name, tt := range map[string]struct {
		ending  bool          // the first was asked to
		ends    time.Duration // after which it does; 0: never
		cancel  time.Duration // the second is asked to end; 0: never
		ok      bool          // the second gets the lock
		noLater time.Duration
	}{
		"it stays":                  {noLater: otherWait},
		"it is killed this moment":  {ends: otherWait / 2, ok: true, noLater: otherWait},
		"it ends":                   {ending: true, ends: 6 * time.Second, ok: true, noLater: 6*time.Second + lockRetry},
		"it should end and hangs":   {ending: true, noLater: endingWait},
		"the second ends meanwhile": {ending: true, cancel: 3 * time.Second, noLater: 3 * time.Second},
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
					t.Errorf("after %s: %v, %v", took, lockErr, err)
				}
				if lockErr != nil && !strings.Contains(lockErr.Error(), taken+dir) {
					t.Errorf("err = %v", lockErr)
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
