package retry

import "time"

// InFlight tracks pieces of work that a loop runs concurrently, by key: which of them are running, and
// when those that ended may run again. It is not safe for concurrent use: the loop that starts the work
// also calls End. V is additional state of a piece of work.
type InFlight[K comparable, V any] struct{ work map[K]*Work[V] }

// Work is one piece of work.
type Work[V any] struct {
	Backoff // when the next attempt may start
	Value   V

	running  bool
	unwanted bool // forgotten when it ends
}

// NewInFlight returns an InFlight without work.
func NewInFlight[K comparable, V any]() InFlight[K, V] {
	return InFlight[K, V]{work: map[K]*Work[V]{}}
}

// Retain forgets all work that is no longer wanted, with its backoff. Work that is running is forgotten
// when it ends, unless it is wanted again by then.
func (f InFlight[K, V]) Retain(wanted func(K) bool) {
	for k, w := range f.work {
		if w.unwanted = !wanted(k); w.unwanted && !w.running {
			delete(f.work, k)
		}
	}
}

// Start marks work as running and returns it. It returns nil while the work is running and, with the
// time of the next attempt, during its backoff.
func (f InFlight[K, V]) Start(k K, now time.Time) (w *Work[V], next time.Time) {
	w = f.Of(k)
	switch {
	case w.running:
		return nil, time.Time{}
	case w.Until.After(now):
		return nil, w.Until
	}
	w.running = true
	return w, time.Time{}
}

// Of returns the work of a key, which may not have been started yet.
func (f InFlight[K, V]) Of(k K) *Work[V] {
	w, ok := f.work[k]
	if !ok {
		w = &Work[V]{}
		f.work[k] = w
	}
	return w
}

// End marks work as no longer running. The caller sets its Backoff.
func (f InFlight[K, V]) End(k K) *Work[V] {
	w := f.work[k]
	w.running = false
	if w.unwanted {
		delete(f.work, k)
	}
	return w
}

// Running counts the running work of the keys for which counts is true; nil: of all keys.
func (f InFlight[K, V]) Running(counts func(K) bool) (n int) {
	for k, w := range f.work {
		if w.running && (counts == nil || counts(k)) {
			n++
		}
	}
	return n
}
