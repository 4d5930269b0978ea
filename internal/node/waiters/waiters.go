// Package waiters makes ADDs wait until a condition holds, and reports what each of them waits for.
package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// Set holds the ADDs that wait for one part of the daemon. Conditions are called with the part's lock held.
type Set struct {
	lock sync.Locker
	all  map[*waiter]bool // guarded by lock; one key may have several, for an ADD and the change of a NIC
}

type waiter struct {
	key  attachment.Key
	pod  attachment.Pod
	why  func() *source.Exhausted
	wake retry.Signal
}

// New returns an empty set for a part with a lock.
func New(lock sync.Locker) *Set { return &Set{lock: lock, all: map[*waiter]bool{}} }

// Until returns nil once why returns nil. why returns what is missing; it is called immediately, after each
// Wake, and by Why, but not after it has returned nil: the state that it stored then belongs to the caller. If ctx
// ends first, the error is what is still missing.
func (s *Set) Until(ctx context.Context, req attachment.Request, why func() *source.Exhausted) error {
	s.lock.Lock()
	missing := why()
	s.lock.Unlock()
	if missing == nil {
		return nil
	}
	w, done := s.add(req, why)
	defer done()
	for {
		s.lock.Lock()
		if missing = why(); missing == nil {
			delete(s.all, w)
		}
		s.lock.Unlock()
		if missing == nil {
			return nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			missing.Err = errors.Join(missing.Err, ctx.Err())
			return missing
		}
	}
}

// Note adds an ADD that waits for something outside of Until, until done is called.
func (s *Set) Note(req attachment.Request, why func() *source.Exhausted) (done func()) {
	_, done = s.add(req, why)
	return done
}

func (s *Set) add(req attachment.Request, why func() *source.Exhausted) (w *waiter, done func()) {
	w = &waiter{req.Key, req.Pod, why, retry.NewSignal()}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.all[w] = true
	return w, func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.all, w)
	}
}

// Why returns what an ADD waits for, or nil if it does not wait.
func (s *Set) Why(key attachment.Key) *source.Exhausted {
	s.lock.Lock()
	defer s.lock.Unlock()
	for w := range s.all {
		if w.key == key {
			return w.why()
		}
	}
	return nil
}

// Wake makes the ADDs of the pods that of selects re-evaluate their conditions; nil selects all pods. The lock is held.
func (s *Set) Wake(of func(attachment.Pod) bool) {
	for w := range s.all {
		if of == nil || of(w.pod) {
			w.wake.Set()
		}
	}
}

// Len returns the number of waiting ADDs. The lock is held.
func (s *Set) Len() int { return len(s.all) }

// Describe adds to a snapshot the ADDs that wait for a part, the part's conditions and details, and the error of the API
// server, if there is one. The lock is held.
func (s *Set) Describe(snap *source.Snapshot, api error, detail source.Detail, conditions ...source.Condition) {
	snap.Waiting += len(s.all)
	snap.Conditions = append(slices.Clip(snap.Conditions), conditions...)
	snap.Detail = source.Details{snap.Detail, detail}
	if api != nil && snap.LastError == "" {
		snap.LastError = "the Kubernetes API cannot be used: " + api.Error()
	}
}

// Missing returns the reason for the wait of an ADD.
func Missing(reason, format string, args ...any) *source.Exhausted {
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Unreachable returns the reason for the wait of an ADD: the API server if its error is not nil, because nothing else can
// change meanwhile.
func Unreachable(err error, why *source.Exhausted) *source.Exhausted {
	if err == nil {
		return why
	}
	return &source.Exhausted{Reason: "unreachable", Message: "the Kubernetes API cannot be used: " + err.Error() + "; " + why.Message, Err: err}
}
