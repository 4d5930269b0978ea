package lanes_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
)

const call = 400 * time.Millisecond

// A provider whose calls go through lanes keeps the contract.
func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(*testing.T) vpcporttest.Bed {
		p, bed := vpcporttest.InMemory(portfake.Options{})
		bed.Provider = lanes.New(lanes.Options{}).Provider(p, nil)
		return bed
	})
}

// traffic makes calls in virtual time.
type traffic struct {
	lanes    *lanes.Limiter
	fake     *portfake.Provider
	provider vpcport.Provider
	group    sync.WaitGroup
}

func newTraffic(o portfake.Options, l lanes.Options) *traffic {
	tr := &traffic{lanes: lanes.New(l), fake: portfake.New(o)}
	tr.provider = tr.lanes.Provider(tr.fake, nil)
	return tr
}

// ask begins so many calls.
func (tr *traffic) ask(ctx context.Context, n int) {
	for range n {
		tr.group.Go(func() { _, _ = tr.provider.Get(ctx, "none") })
	}
	synctest.Wait()
}

func (tr *traffic) is(t *testing.T, what string, want lanes.Usage) {
	t.Helper()
	synctest.Wait()
	if got := tr.lanes.Usage(); got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// virtual runs a test in virtual time, in which it may sleep.
func virtual(t *testing.T, test func(t *testing.T, sleep func(time.Duration))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, func(d time.Duration) {
			time.Sleep(d) //nolint:forbidigo // virtual time
			synctest.Wait()
		})
	})
}

// Eight calls are in flight as long as calls wait.
func TestBound(t *testing.T) {
	virtual(t, func(t *testing.T, _ func(time.Duration)) {
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{})
		began := time.Now()
		tr.ask(t.Context(), 2000)
		tr.is(t, "at the beginning", lanes.Usage{Allowed: 8, InFlight: 8, Waiting: 1992})
		tr.group.Wait()
		if took := time.Since(began); took != 2000/8*call {
			t.Errorf("2000 calls took %v", took)
		}
		tr.is(t, "at the end", lanes.Usage{Allowed: 8})
	})
}

// A burst of throttled calls halves the limit once; then it grows by one after each successful round.
func TestThrottled(t *testing.T) {
	virtual(t, func(t *testing.T, sleep func(time.Duration)) {
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{})
		tr.fake.Front.Inject(portfake.Fault{Times: 8, Err: &vpcport.Error{Class: vpcport.Throttled, Status: 429, RetryAfter: 30 * time.Second}})
		tr.ask(t.Context(), 100)
		sleep(call)
		tr.is(t, "refused", lanes.Usage{Allowed: 4, Waiting: 92})
		sleep(30*time.Second - time.Millisecond)
		tr.is(t, "just before the time that the provider asked for", lanes.Usage{Allowed: 4, Waiting: 92})
		sleep(time.Millisecond)
		tr.is(t, "after it", lanes.Usage{Allowed: 4, InFlight: 4, Waiting: 88})
		sleep(call)
		tr.is(t, "after a round", lanes.Usage{Allowed: 5, InFlight: 5, Waiting: 83})
		sleep(call)
		tr.is(t, "after two", lanes.Usage{Allowed: 6, InFlight: 6, Waiting: 77})
		tr.group.Wait()
		tr.is(t, "at the end", lanes.Usage{Allowed: 8})
	})
}

// Without Retry-After the limiter chooses a pause, which grows while all calls are throttled. One call is
// always let through in the end.
func TestThrottledWithoutATime(t *testing.T) {
	virtual(t, func(t *testing.T, _ func(time.Duration)) {
		tr := newTraffic(portfake.Options{}, lanes.Options{Calls: 4})
		tr.fake.Front.Inject(portfake.Fault{Times: 40, Err: &vpcport.Error{Class: vpcport.Throttled, Status: 429}})
		var waits []time.Duration
		for range 9 {
			began := time.Now()
			if _, err := tr.provider.Get(t.Context(), "none"); vpcport.ClassOf(err) != vpcport.Throttled {
				t.Fatal(err)
			}
			waits = append(waits, time.Since(began))
		}
		if got := tr.lanes.Usage(); got.Allowed != 1 {
			t.Errorf("%+v", got)
		}
		for i, w := range waits[1:] {
			if want := min(time.Minute, time.Second<<i); w < want/2 || w > want*3/2 {
				t.Errorf("wait %d is %v, want about %v: %v", i, w, want, waits)
			}
		}
	})
}

// A longer Retry-After of a call that began before the pause extends it.
func TestLongerPause(t *testing.T) {
	virtual(t, func(t *testing.T, sleep func(time.Duration)) {
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{Calls: 2})
		for _, wait := range []time.Duration{time.Second, 10 * time.Second} {
			tr.fake.Front.Inject(portfake.Fault{Times: 1, Err: &vpcport.Error{Class: vpcport.Throttled, RetryAfter: wait}})
		}
		tr.ask(t.Context(), 3)
		sleep(call + 9*time.Second)
		tr.is(t, "after the shorter", lanes.Usage{Allowed: 1, Waiting: 1})
		sleep(time.Second)
		tr.is(t, "after the longer", lanes.Usage{Allowed: 1, InFlight: 1})
		tr.group.Wait()
	})
}

// Transient errors do not lower the limit.
func TestTransientChangesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, _ func(time.Duration)) {
		tr := newTraffic(portfake.Options{}, lanes.Options{})
		tr.fake.Front.Inject(portfake.Fault{Err: portfake.Err(vpcport.Transient)})
		tr.ask(t.Context(), 100)
		tr.group.Wait()
		tr.is(t, "at the end", lanes.Usage{Allowed: 8})
	})
}

// Deletions and bindings go before reads, and reads before new ports, but no call waits forever.
func TestOrder(t *testing.T) {
	virtual(t, func(t *testing.T, _ func(time.Duration)) {
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{Calls: 1})
		for range 3 {
			tr.group.Go(func() { _, _ = tr.provider.Create(t.Context(), nil) })
		}
		synctest.Wait() // one is under way, two wait
		tr.ask(t.Context(), 2)
		for range 12 {
			tr.group.Go(func() { _ = tr.provider.Delete(t.Context(), "none") })
		}
		tr.group.Go(func() { _, _ = tr.provider.Update(t.Context(), "none", 0, vpcport.Change{}) })
		tr.group.Wait()
		var got []string
		for _, c := range tr.fake.Front.Calls() {
			got = append(got, c.Op[:1])
		}
		// Of deletions and the binding, the order among them is that in which they came.
		var plain []string
		for _, op := range got {
			if op == "U" {
				op = "D"
			}
			plain = append(plain, op)
		}
		want := []string{"C", "D", "D", "D", "D", "D", "D", "D", "D", "C", "D", "D", "D", "D", "D", "G", "G", "C"}
		if !slices.Equal(plain, want) {
			t.Errorf("calls\n%v, want\n%v", plain, want)
		}
	})
}

// A waiting call whose context ends is not sent, and frees its place.
func TestGivesUp(t *testing.T) {
	virtual(t, func(t *testing.T, sleep func(time.Duration)) {
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{Calls: 1})
		tr.ask(t.Context(), 1)
		hurried, cancel := context.WithTimeout(t.Context(), call/2)
		defer cancel()
		tr.ask(hurried, 5)
		tr.ask(t.Context(), 1)
		sleep(call / 2)
		tr.is(t, "five gave up", lanes.Usage{Allowed: 1, InFlight: 1, Waiting: 1})
		tr.group.Wait()
		if n := len(tr.fake.Front.Calls()); n != 2 {
			t.Errorf("%d calls were sent, want 2", n)
		}
		tr.is(t, "at the end", lanes.Usage{Allowed: 1})
	})
}

// A call that panics frees its place.
func TestPanic(t *testing.T) {
	l := lanes.New(lanes.Options{Calls: 1})
	p := l.Provider(nil, nil)
	func() {
		defer func() { _ = recover() }()
		_ = p.Delete(t.Context(), "x")
	}()
	if got := l.Usage(); got != (lanes.Usage{Allowed: 1}) {
		t.Errorf("%+v", got)
	}
}

// The observer sees each call with the time that it waited.
func TestObserver(t *testing.T) {
	virtual(t, func(t *testing.T, _ func(time.Duration)) {
		seen := &observed{}
		tr := newTraffic(portfake.Options{Latency: call}, lanes.Options{Calls: 1})
		tr.provider = tr.lanes.Provider(tr.fake, seen)
		tr.ask(t.Context(), 2)
		tr.group.Wait()
		want := []called{{lanes.OpGet, vpcport.PortGone, 0, call}, {lanes.OpGet, vpcport.PortGone, call, call}}
		if !slices.Equal(seen.all, want) {
			t.Errorf("%+v, want %+v", seen.all, want)
		}
	})
}

type called struct {
	op           string
	class        vpcport.Class
	waited, took time.Duration
}

type observed struct{ all []called }

func (o *observed) Called(op string, err error, waited, took time.Duration) {
	o.all = append(o.all, called{op, vpcport.ClassOf(err), waited, took})
}
