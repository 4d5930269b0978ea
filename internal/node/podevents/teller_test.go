package podevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
)

// api is an API server that records requests, and fails while an error is set.
type api struct {
	mu      sync.Mutex // guards the fields below
	err     error
	taken   string // namespace in which all names are taken
	asked   int
	written []string // verb, reason, pod
	counted map[Result]int
}

func (a *api) ask(verb string, e Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.taken != "" && e.Pod.Namespace == a.taken {
		return fmt.Errorf("%w: already exists", ErrTaken)
	}
	if a.err == nil {
		a.written = append(a.written, fmt.Sprint(verb, " ", e.Reason, " ", e.Pod.Name))
	}
	return a.err
}

func (a *api) Create(_ context.Context, e Event) error { return a.ask("create", e) }
func (a *api) Repeat(_ context.Context, e Event) error { return a.ask("repeat", e) }

func (a *api) count(r Result, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counted[r] += n
}

func (a *api) answers(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// reported runs a test with a Recorder in virtual time.
func reported(t *testing.T, test func(t *testing.T, teller *Recorder, a *api, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		a, log := &api{counted: map[Result]int{}}, &strings.Builder{}
		teller := New(Options{Node: "node-1", Writer: a, Clock: clock.Real{}, Log: slog.New(slog.NewTextHandler(log, nil)), Counted: a.count})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { teller.Run(ctx) })
		test(t, teller, a, log)
		stop()
		wg.Wait()
	})
}

// passes advances virtual time and waits until all goroutines are idle.
func passes(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

func TestRecorderWritesImmediately(t *testing.T) {
	reported(t, func(t *testing.T, teller *Recorder, a *api, _ *strings.Builder) {
		teller.Record(newsOf("a", WaitsForAddress, "growing"))
		passes(0)
		teller.Record(newsOf("a", WaitsForAddress, "growing"))
		teller.Record(News{Pod: pod("b"), IfName: "eth0", Kind: Attached})
		passes(2 * time.Minute)
		teller.Record(News{Pod: pod("a"), IfName: "eth0", Kind: Attached})
		passes(0)
		teller.Record(News{Pod: attachment.Pod{}, Kind: NetworkFailed}) // from a runtime that passes no pod names
		passes(time.Hour)
		want := []string{"create WaitingForAddress a", "repeat WaitingForAddress a", "create AddressAssigned a"}
		if fmt.Sprint(a.written) != fmt.Sprint(want) || a.counted[Written] != 3 || len(a.counted) != 1 {
			t.Errorf("written = %q, counted = %v; want %q", a.written, a.counted, want)
		}
	})
}

// While the API server is unreachable, one request at a time is tried, at growing intervals. Reports
// that are not stale when it is back are written then.
func TestRecorderWithoutAPIServer(t *testing.T) {
	reported(t, func(t *testing.T, teller *Recorder, a *api, log *strings.Builder) {
		a.answers(errors.New("connection refused"))
		for i := range 1000 {
			teller.Record(newsOf(fmt.Sprint("p", i), NoAddress, "unreachable"))
		}
		passes(10 * time.Minute)
		if a.asked > 30 || a.counted[Dropped] != 1000 || a.counted[Refused] != 0 {
			t.Errorf("%d requests, counted %v; want at most 30 requests and 1000 dropped", a.asked, a.counted)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != 1 {
			t.Errorf("%d warnings, want 1:\n%s", got, log)
		}
		teller.Record(newsOf("late", NoAddress, "unreachable"))
		passes(time.Second)
		a.answers(nil)
		passes(pauseMost * 2)
		if len(a.written) != 1 || a.written[0] != "create NoAddress late" {
			t.Errorf("written = %q, want the late Event", a.written)
		}
	})
}

// A missing permission costs one request per Event within the rate limit, and one
// log line.
func TestRecorderWithoutPermission(t *testing.T) {
	reported(t, func(t *testing.T, teller *Recorder, a *api, log *strings.Builder) {
		a.answers(fmt.Errorf("%w: forbidden", ErrFinal))
		for range 1000 {
			teller.Record(newsOf("a", NoAddress, "subnet-full"))
			passes(0)
		}
		passes(time.Minute)
		if a.asked > burst+int(time.Minute/each) || a.counted[Refused] != a.asked || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("%d requests, counted %v, log:\n%s", a.asked, a.counted, log)
		}
	})
}

// A namespace in which all names are taken does not affect other namespaces, and costs one log line.
func TestRecorderWithAllNamesTaken(t *testing.T) {
	reported(t, func(t *testing.T, teller *Recorder, a *api, log *strings.Builder) {
		a.taken = "full"
		for i := range most / 2 {
			n := newsOf(fmt.Sprint("p", i), NoAddress, "subnet-full")
			n.Pod.Namespace = a.taken
			teller.Record(n)
		}
		passes(time.Minute)
		teller.Record(newsOf("other", NoAddress, "subnet-full"))
		passes(time.Second)
		if len(a.written) != 1 || a.written[0] != "create NoAddress other" || a.asked > 1+10 {
			t.Errorf("%d requests, written %q; want the Event in the other namespace", a.asked, a.written)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != 1 || !strings.Contains(log.String(), "namespace=full") {
			t.Errorf("%d warnings, want 1 for namespace full:\n%s", got, log)
		}
		a.mu.Lock()
		a.taken = ""
		a.mu.Unlock()
		n := newsOf("late", NoAddress, "subnet-full") // the others may be dropped as too old by now
		n.Pod.Namespace = "full"
		teller.Record(n)
		passes(2 * takenMost)
		if left := len(a.written); left < 2 {
			t.Errorf("no Event was written after names became free")
		}
	})
}
