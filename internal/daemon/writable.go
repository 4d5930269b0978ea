package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/attachment"
)

// writableInterval is how often it is looked whether records can be written,
// besides after each call that failed for it.
const writableInterval = 15 * time.Second

// writableLoop keeps the condition, until ctx ends.
func (d *Daemon) writableLoop(ctx context.Context) {
	for {
		d.lookAtRecords()
		select {
		case <-ctx.Done():
			return
		case <-d.recordFailed:
		case <-d.Clock.After(writableInterval):
		}
	}
}

// lookAtRecords writes one to see.
func (d *Daemon) lookAtRecords() {
	err := d.Store.Probe()
	var message string
	if err != nil {
		message = fmt.Sprintf("no pod can be made: %s", err)
	}
	switch {
	case err == nil:
		d.conditions.set(ConditionWritable, true, "Writable", "")
	case attachment.IsNoSpace(err):
		d.conditions.set(ConditionWritable, false, "NoSpace", message)
	case errors.Is(err, unix.EROFS):
		d.conditions.set(ConditionWritable, false, "ReadOnly", message)
	default:
		d.conditions.set(ConditionWritable, false, "NotWritable", message)
	}
}

// writable is nil unless records cannot be written. STATUS does not ask: pods
// that run are fine, and would be evicted for it.
func (d *Daemon) writable() error {
	if c, ok := d.conditions.get(ConditionWritable); ok && !c.Healthy {
		return errors.New(c.Message)
	}
	return nil
}
