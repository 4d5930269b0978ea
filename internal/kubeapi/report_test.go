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

// apiObjects are objects whose status is written, as the API server has them and as the watch shows them.
type apiObjects struct {
	mu      sync.Mutex // guards all below
	version map[string]int
	shown   map[string]int
	due     []string
	fail    func(name string) error // nil: nothing fails
	takes   time.Duration
	writes  []string
	most    int // in flight at once
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

// reporting runs a reporter for a test's do, which waits for what happens with settle and takes the writes.
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
				t.Errorf("%s: written %v, want %v", what, a.writes, want)
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
		wrote("both", "a", "b")
		wake()
		wrote("the watch has its time")
		a.set(func() { a.shown["a"], a.due = a.version["a"], []string{"b"} })
		wake()
		wrote("one is shown")
		pass(WatchDelay - 1)
		wrote("the other still has time")
		pass(1)
		wrote("it is repeated, and conflicts", "b")
		// A state that differs again is written as soon as the watch shows the last write.
		a.set(func() { a.shown["b"] = a.version["b"] })
		wake()
		wrote("b", "b")
		a.set(func() { a.due = []string{"a"} })
		wake()
		wrote("a after it was shown", "a")
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
		wrote("one is refused", "a", "b")
		a.set(func() { a.shown["b"], a.due = a.version["b"], []string{"a"} })
		wake()
		wrote("at once")
		pass(retry.First * 3 / 2)
		wrote("later", "a")
		pass(retry.First / 2)
		wrote("the wait doubles")
		// Without an answer nothing else is tried meanwhile.
		away := errors.New("connection refused")
		pass(retry.First * 3)
		a.set(func() { a.writes, a.fail, a.due = nil, func(string) error { return away }, []string{"b"} })
		wake()
		wrote("no API server", "b")
		a.set(func() { a.due = []string{"b", "c"} })
		wake()
		wrote("others wait too")
	})
}

func TestReporterBoundsRequests(t *testing.T) {
	a := &apiObjects{takes: time.Second}
	for i := range 10 {
		a.due = append(a.due, fmt.Sprint(i))
	}
	reporting(t, 4, a, func(_ func(), wrote func(string, ...string)) {
		pass(time.Second)
		wrote("the first", "0", "1", "2", "3")
		pass(time.Second)
		wrote("the next", "4", "5", "6", "7")
		if a.most != 4 {
			t.Errorf("%d at once", a.most)
		}
	})
}
