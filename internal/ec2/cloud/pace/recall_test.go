package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// A call that is recalled while it waits is not sent, and leaves its turn to
// others; one that was sent is awaited.
func TestRecalledCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet(Options{Ceilings: map[string]Limit{Assign.Action: {Rate: 0.1, Burst: 1}}})
		recalled := make(chan struct{})
		ctx := cloud.WithRecall(t.Context(), recalled)
		begin, sent := time.Now(), 0
		send := func(took time.Duration) func(context.Context) Reply {
			return func(ctx context.Context) Reply {
				sent++
				select {
				case <-time.After(took):
					return Reply{}
				case <-ctx.Done():
					return Reply{Err: &cloud.Error{Class: cloud.Transient, Err: ctx.Err()}}
				}
			}
		}
		time.AfterFunc(2*time.Second, func() { close(recalled) })
		first := make(chan error, 1)
		go func() { first <- s.Do(ctx, Assign, send(3*time.Second)) }()
		synctest.Wait()
		err := s.Do(ctx, Assign, send(0))
		if !errors.Is(err, cloud.ErrRecalled) || cloud.ClassOf(err) != cloud.Throttled || time.Since(begin) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if err := <-first; err != nil {
			t.Errorf("sent, and recalled then: %v", err)
		}
		if err := s.Do(t.Context(), Assign, send(0)); err != nil || time.Since(begin) != 10*time.Second {
			t.Errorf("after %v: %v, want the turn of the recalled one", time.Since(begin), err)
		}
		check.Equal(t, sent, 2, "calls were sent")
	})
}
