package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// After a refusal a call that nobody waits for leaves the rate to those of other
// processes, and an urgent one does not; as soon as it is needed, it goes. A
// process without peers yields to nobody.
func TestSpareCallsYield(t *testing.T) {
	after := func(peers bool, call func(ctx context.Context, needed chan struct{}) context.Context) (waited time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := NewSet(Options{Peers: peers})
			s.report(s.join(Assign, 0, false, 0).permit, refused)
			begin, needed := time.Now(), make(chan struct{})
			p, _, _, err := s.acquire(call(t.Context(), needed), Assign, 0)
			check.OK(t, err)
			s.report(p, passed)
			waited = time.Since(begin)
		})
		return waited
	}
	urgent := func(ctx context.Context, _ chan struct{}) context.Context { return ctx }
	spare := func(ctx context.Context, needed chan struct{}) context.Context { return cloud.WithSpare(ctx, needed) }
	soon := func(ctx context.Context, needed chan struct{}) context.Context {
		time.AfterFunc(time.Second, func() { close(needed) })
		return cloud.WithSpare(ctx, needed)
	}
	for _, tt := range []struct {
		name  string
		peers bool
		call  func(context.Context, chan struct{}) context.Context
		want  time.Duration
	}{
		{"urgent", true, urgent, firstHold},
		{"spare", true, spare, spareFactor * spareLeast},
		{"needed after a second", true, soon, time.Second},
		{"spare, no peers", false, spare, 0},
	} {
		check.Equal(t, after(tt.peers, tt.call), tt.want, "%s: waited", tt.name)
	}
}
