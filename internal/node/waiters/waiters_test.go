package waiters

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

func request(pod string) attachment.Request {
	return attachment.Request{Key: attachment.Key{ContainerID: pod}, Pod: attachment.Pod{Name: pod}}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		s, missing, looks := New(&mu), true, 0
		why := func() *source.Exhausted {
			if looks++; missing {
				return &source.Exhausted{Reason: "growing", Message: "nothing yet"}
			}
			return nil
		}
		wake := func(pod string) {
			mu.Lock()
			defer mu.Unlock()
			s.Wake(func(p attachment.Pod) bool { return p.Name == pod })
		}
		time.AfterFunc(time.Second, func() { wake("another") })
		time.AfterFunc(2*time.Second, func() { wake("a") }) // in vain
		time.AfterFunc(3*time.Second, func() {
			if why := s.Why(request("a").Key); why == nil || why.Reason != "growing" {
				t.Errorf("it waits for %v", why)
			}
			mu.Lock()
			missing = false
			s.Wake(nil)
			mu.Unlock()
		})
		start := time.Now()
		if err := s.Until(t.Context(), request("a"), why); err != nil || time.Since(start) != 3*time.Second || looks != 5 {
			t.Errorf("%v after %v and %d looks", err, time.Since(start), looks)
		}
		missing = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := s.Until(ctx, request("a"), why)
		if missing, ok := errors.AsType[*source.Exhausted](err); !ok || missing.Reason != "growing" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("in the end: %v", err)
		}
		done := s.Note(request("b"), why)
		if s.Len() != 1 || s.Why(request("b").Key) == nil {
			t.Error("who waits for something else is not among them")
		}
		if done(); s.Len() != 0 || s.Why(request("b").Key) != nil {
			t.Error("nobody waits any more")
		}
	})
}

func TestUnreachable(t *testing.T) {
	why := &source.Exhausted{Reason: "growing", Message: "nothing yet"}
	if Unreachable(nil, why) != why {
		t.Error("the API server can be reached")
	}
	away := errors.New("connection refused")
	if got := Unreachable(away, why); got.Reason != "unreachable" || !errors.Is(got, away) || !strings.Contains(got.Message, "connection refused; nothing yet") {
		t.Errorf("%+v", got)
	}
}

// unlocked is a mutex that calls a function after each unlock.
type unlocked struct {
	sync.Mutex
	then func()
}

func (u *unlocked) Unlock() {
	u.Mutex.Unlock()
	if then := u.then; then != nil {
		u.then = nil
		then()
	}
}

// A condition is not evaluated again after it held: what it decided then is what the ADD gets.
func TestUntilEvaluatesNoMore(t *testing.T) {
	var mu unlocked
	s, looks := New(&mu), 0
	key := request("a").Key
	why := func() *source.Exhausted {
		switch looks++; looks {
		case 1:
			return &source.Exhausted{Reason: "growing"}
		case 2:
			mu.then = func() { _ = s.Why(key) }
		}
		return nil
	}
	if err := s.Until(t.Context(), request("a"), why); err != nil || looks != 2 {
		t.Errorf("%v after %d looks, want 2", err, looks)
	}
}

// Waits of the same key do not end each other: a NIC's change may still wait when an ADD of its key comes.
func TestWaitsOfOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		s, missing := New(&mu), true
		done := s.Note(request("a"), func() *source.Exhausted { return &source.Exhausted{Reason: "no-link"} })
		time.AfterFunc(time.Second, done)
		time.AfterFunc(2*time.Second, func() {
			mu.Lock()
			defer mu.Unlock()
			missing = false
			s.Wake(nil)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := s.Until(ctx, request("a"), func() *source.Exhausted {
			if missing {
				return &source.Exhausted{Reason: "growing"}
			}
			return nil
		})
		if err != nil {
			t.Errorf("it was not woken: %v", err)
		}
	})
}
