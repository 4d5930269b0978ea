package podevents

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
)

// While the API server rejects requests or does not respond, one request at a time is tried with this backoff.
const (
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
)

// Result is the outcome of an Event or of an update.
type Result string

// The results. Refused and Dropped mean that an Event was not written as intended.
const (
	Written Result = "written"
	Refused Result = "refused" // the API server rejected it
	Dropped Result = "dropped" // too many at once, or no answer for too long
)

// Options configure a Teller. All are required.
type Options struct {
	Node    string // reporting instance of the Events
	Writer  Writer
	Clock   clock.Clock
	Log     *slog.Logger
	Counted func(r Result, n int) // for metrics
}

// Recorder writes Events of Pods. Create it with New and call Run.
type Recorder struct {
	o    Options
	wake retry.Signal // set when there are reports

	mu    sync.Mutex // guards queue; never held during requests
	queue *queue
}

// New returns a Recorder. It makes no requests yet.
func New(o Options) *Recorder {
	return &Recorder{o: o, wake: retry.NewSignal(), queue: newQueue(o.Node)}
}

// Record accepts a report. It does not block and may be called at any time. It ignores reports of pods without
// a name.
func (t *Recorder) Record(n News) {
	if n.Pod.Namespace == "" || n.Pod.Name == "" {
		return
	}
	t.mu.Lock()
	kept, dropped := t.queue.add(n, t.o.Clock.Now())
	t.mu.Unlock()
	if dropped > 0 {
		t.o.Counted(Dropped, dropped)
	}
	if kept {
		t.wake.Set()
	}
}

// Run writes Events until ctx ends.
func (t *Recorder) Run(ctx context.Context) {
	var away retry.Backoff
	warned := false
	for ctx.Err() == nil {
		now := t.o.Clock.Now()
		t.mu.Lock()
		r, wait, dropped := t.queue.next(now)
		t.mu.Unlock()
		if dropped > 0 {
			t.o.Counted(Dropped, dropped)
		}
		if r == nil {
			t.pause(ctx, wait, t.wake)
			continue
		}
		err := t.write(ctx, r)
		if ctx.Err() != nil {
			return
		}
		now = t.o.Clock.Now()
		t.mu.Lock()
		kept, isCrowded := t.queue.done(r, err, now), t.queue.isCrowded(r.Pod.Namespace)
		t.mu.Unlock()
		switch {
		case err == nil:
			away, warned = retry.Backoff{}, false
			t.o.Counted(Written, 1)
		case errors.Is(err, ErrTaken):
			if isCrowded {
				t.o.Log.Warn("Events of a namespace wait until older ones expire: all names of this node are in use", "namespace", r.Pod.Namespace, "names", slots)
			}
		case !warned:
			warned = true
			t.o.Log.Warn("writing an Event failed", "namespace", r.Pod.Namespace, "pod", r.Pod.Name, "reason", r.Reason, "err", err)
		}
		if kept {
			away.Fail(now, pauseFirst, pauseMost)
			t.pause(ctx, away.Until.Sub(now), nil)
		} else if err != nil && !errors.Is(err, ErrTaken) {
			t.o.Counted(Refused, 1)
		}
	}
}

// pause waits for a duration, or indefinitely if it is 0, but ends when there is a report.
func (t *Recorder) pause(ctx context.Context, d time.Duration, news retry.Signal) {
	var over <-chan time.Time
	if d > 0 {
		over = t.o.Clock.After(d)
	}
	select {
	case <-ctx.Done():
	case <-over:
	case <-news:
	}
}

func (t *Recorder) write(ctx context.Context, r *request) error {
	if r.again {
		return t.o.Writer.Repeat(ctx, r.Event)
	}
	return t.o.Writer.Create(ctx, r.Event)
}
