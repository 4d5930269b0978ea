package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// writableInterval is how often it is looked whether records can be written,
// besides after each call that failed for it.
const writableInterval = 15 * time.Second

// writable watches whether records can be written.
type writable struct {
	store      *attachment.Store
	conditions *conditions
	failed     retry.Signal // capacity 1: a call failed for a record that could not be written
	clock      clock.Clock
}

// run keeps the condition, until ctx ends.
func (w *writable) run(ctx context.Context) {
	for {
		w.look()
		select {
		case <-ctx.Done():
			return
		case <-w.failed:
		case <-w.clock.After(writableInterval):
		}
	}
}

// look writes one to see.
func (w *writable) look() {
	err := w.store.Probe()
	var message string
	if err != nil {
		message = fmt.Sprintf("no pod can be made: %s", err)
	}
	switch {
	case err == nil:
		w.conditions.set(ConditionWritable, true, "Writable", "")
	case attachment.IsNoSpace(err):
		w.conditions.set(ConditionWritable, false, "NoSpace", message)
	case errors.Is(err, unix.EROFS):
		w.conditions.set(ConditionWritable, false, "ReadOnly", message)
	default:
		w.conditions.set(ConditionWritable, false, "NotWritable", message)
	}
}

// err is nil unless records cannot be written. STATUS does not ask: pods
// that run are fine, and would be evicted for it.
func (w *writable) err() error {
	if c, ok := w.conditions.get(ConditionWritable); ok && !c.Healthy {
		return errors.New(c.Message)
	}
	return nil
}
