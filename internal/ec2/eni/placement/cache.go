package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

// cache keeps EC2's answers to questions that many nodes ask. An answer serves
// every caller for whom it is recent enough, and callers that ask the same
// question while a call is in flight share that call.
type cache[V any] struct {
	clock   clock.Clock
	timeout time.Duration      // of a call, its wait for the rate limit included
	keep    time.Duration      // age at which an answer is dropped; 0: never
	calls   singleflight.Group // in flight, by question and priority

	mu   sync.Mutex // guards last; never held during a call
	last map[string]answer[V]
}

// answer is the last one to a question.
type answer[V any] struct {
	value V
	at    time.Time // when the call began; zero: there was none
}

func newCache[V any](c clock.Clock, timeout, keep time.Duration) *cache[V] {
	return &cache[V]{clock: c, timeout: timeout, keep: keep, last: map[string]answer[V]{}}
}

// get returns the last answer to a question, and whether it is younger than age.
func (m *cache[V]) get(question string, age time.Duration) (a answer[V], young bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.last[question]
	return a, ok && m.clock.Now().Sub(a.at) < age
}

// youngerThan returns the earliest time at which an answer that is younger than
// age at now can have been given. An answer of exactly that age is too old,
// because refreshes are scheduled for the moment in which it reaches that age.
func youngerThan(age time.Duration, now time.Time) time.Time { return now.Add(-age + 1) }

// ask returns an answer as of since or later, by a call if need be.
func (m *cache[V]) ask(ctx context.Context, question string, since time.Time, call func(context.Context) (V, error)) (answer[V], error) {
	// Callers of different priorities do not share a call: a node that is about
	// to grow must not wait at the priority of one whose subnets are full.
	flight := fmt.Sprint(question, " ", cloud.PriorityOf(ctx))
	for range 3 {
		if a, _ := m.get(question, 0); !a.at.IsZero() && !a.at.Before(since) {
			return a, nil
		}
		_, err, _ := m.calls.Do(flight, func() (any, error) {
			if a, _ := m.get(question, 0); !a.at.IsZero() && !a.at.Before(since) {
				return nil, nil // another call ended in the meantime
			}
			return nil, m.renew(ctx, question, call)
		})
		if err != nil {
			return answer[V]{}, err
		}
	}
	return answer[V]{}, errors.New("every answer was older than asked for")
}

// renew makes a call and stores its answer.
func (m *cache[V]) renew(ctx context.Context, question string, call func(context.Context) (V, error)) error {
	now := m.clock.Now()
	// Other callers may wait for this call when the first one is cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timeout)
	defer cancel()
	v, err := call(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keep > 0 {
		maps.DeleteFunc(m.last, func(_ string, a answer[V]) bool { return now.Sub(a.at) >= m.keep })
	}
	if now.After(m.last[question].at) {
		m.last[question] = answer[V]{v, now}
	}
	return nil
}
