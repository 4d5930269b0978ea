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

// While the API server rejects or does not answer, one request is tried at a time with this backoff.
const (
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
)

// Result is the outcome of an Event or of an update.
type Result string

// The results. Refused and Dropped are those of Events that were not written as intended.
const (
	Written Result = "written"
	Refused Result = "refused" // the API server rejected it
	Dropped Result = "dropped" // too many at once, or no answer for too long
)

// Options configure a Teller. All are required.
type Options struct {
	Node    string // the reporting instance of the Events
	Writer  Writer
	Clock   clock.Clock
	Log     *slog.Logger
	Counted func(r Result, n int) // for metrics
}

// Recorder writes Events of Pods. Make it with New and call Run.
type Recorder struct {
	o    Options
	wake retry.Signal // there is news

	mu    sync.Mutex // guards queue; memory only, no request is made under it
	queue *queue
}

// New returns a Teller. It makes no request yet.
func New(o Options) *Recorder {
	return &Recorder{o: o, wake: retry.NewSignal(), queue: newQueue(o.Node)}
}

// Record accepts news. It returns at once and may be called at any time. It ignores news of pods without
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

// Run writes until ctx ends.
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
			t.o.Log.Warn("writing an Event", "namespace", r.Pod.Namespace, "pod", r.Pod.Name, "reason", r.Reason, "err", err)
		}
		if kept {
			away.Fail(now, pauseFirst, pauseMost)
			t.pause(ctx, away.Until.Sub(now), nil)
		} else if err != nil && !errors.Is(err, ErrTaken) {
			t.o.Counted(Refused, 1)
		}
	}
}

// pause waits for a time, or for ever if it is 0, but ends when there is news.
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
