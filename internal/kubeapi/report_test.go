package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
)

// apiObjects are objects whose status is written: their versions in the API server and in the watch.
type apiObjects struct {
	mu      sync.Mutex // guards all below
	version map[string]int
	shown   map[string]int
	due     []string
	fail    func(name string) error // nil: nothing fails
	takes   time.Duration
	writes  []string
	most    int // most writes in flight
	now     int
}

func (a *apiObjects) lacking(time.Time) (list []Report[string]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range a.due {
		list = append(list, Report[string]{Name: types.NamespacedName{Name: name}, UID: types.UID(name), Version: fmt.Sprint(a.shown[name]), State: "up"})
	}
	return list
}

func (a *apiObjects) write(_ context.Context, r Report[string]) error {
	a.mu.Lock()
	a.now++
	a.most = max(a.most, a.now)
	a.mu.Unlock()
	time.Sleep(a.takes) //nolint:forbidigo // virtual time
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now--
	name := r.Name.Name
	a.writes = append(a.writes, name)
	if r.Version != fmt.Sprint(a.version[name]) {
		return apierrors.NewConflict(schema.GroupResource{}, name, errors.New("it changed"))
	}
	if a.fail != nil {
		if err := a.fail(name); err != nil {
			return err
		}
	}
	a.version[name]++
	return nil
}

// reporting runs a reporter while do runs. do's wrote waits until the reporter is idle and compares its writes.
func reporting(t *testing.T, atOnce int, a *apiObjects, do func(wake func(), wrote func(what string, want ...string))) {
	synctest.Test(t, func(t *testing.T) {
		a.version, a.shown = map[string]int{}, map[string]int{}
		ctx, cancel := context.WithCancel(t.Context())
		r := &Reporter[string]{Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), AtOnce: atOnce, Wake: retry.NewSignal(), Due: a.lacking, Write: a.write}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx)
		}()
		do(r.Wake.Set, func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			if slices.Sort(a.writes); !slices.Equal(a.writes, want) {
				t.Errorf("%s: written = %v, want %v", what, a.writes, want)
			}
			a.writes = nil
		})
		cancel()
		<-done
	})
}

func (a *apiObjects) set(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // virtual time

func TestReporterWaitsForTheWatch(t *testing.T) {
	a := &apiObjects{due: []string{"a", "b"}}
	reporting(t, 9, a, func(wake func(), wrote func(string, ...string)) {
		wrote("initially", "a", "b")
		wake()
		wrote("before WatchDelay")
		a.set(func() { a.shown["a"], a.due = a.version["a"], []string{"b"} })
		wake()
		wrote("watch shows a")
		pass(WatchDelay - 1)
		wrote("b before WatchDelay")
		pass(1)
		wrote("b repeated, with a conflict", "b")
		// A new state is written as soon as the watch shows the last write.
		a.set(func() { a.shown["b"] = a.version["b"] })
		wake()
		wrote("b again", "b")
		a.set(func() { a.due = []string{"a"} })
		wake()
		wrote("a again", "a")
	})
}

func TestReporterBacksOff(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{}, "x", errors.New("no"))
	a := &apiObjects{due: []string{"a", "b"}, fail: func(name string) error {
		if name == "a" {
			return refused
		}
		return nil
	}}
	reporting(t, 9, a, func(wake func(), wrote func(string, ...string)) {
		wrote("write of a forbidden", "a", "b")
		a.set(func() { a.shown["b"], a.due = a.version["b"], []string{"a"} })
		wake()
		wrote("immediately")
		pass(retry.First * 3 / 2)
		wrote("after the backoff", "a")
		pass(retry.First / 2)
		wrote("backoff doubles")
		// While the API server does not answer, no other object is tried.
		away := errors.New("connection refused")
		pass(retry.First * 3)
		a.set(func() { a.writes, a.fail, a.due = nil, func(string) error { return away }, []string{"b"} })
		wake()
		wrote("API server unreachable", "b")
		a.set(func() { a.due = []string{"b", "c"} })
		wake()
		wrote("others back off too")
	})
}

func TestReporterLimitsConcurrentWrites(t *testing.T) {
	a := &apiObjects{takes: time.Second}
	for i := range 10 {
		a.due = append(a.due, fmt.Sprint(i))
	}
	reporting(t, 4, a, func(_ func(), wrote func(string, ...string)) {
		pass(time.Second)
		wrote("first batch", "0", "1", "2", "3")
		pass(time.Second)
		wrote("second batch", "4", "5", "6", "7")
		if a.most != 4 {
			t.Errorf("%d writes in flight, want 4", a.most)
		}
	})
}
