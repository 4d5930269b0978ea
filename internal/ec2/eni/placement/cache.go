package eni

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

// memory is what EC2 answered to questions that many nodes ask: an answer is
// remembered for those to whom it is new enough, and who asks while a call is
// under way shares it.
type memory[V any] struct {
	clock   clock.Clock
	timeout time.Duration      // of a call, its wait for the rate limit included
	keep    time.Duration      // after which an answer is dropped; 0: never
	calls   singleflight.Group // under way, by question and priority

	mu   sync.Mutex // guards last; memory only
	last map[string]answer[V]
}

// answer is the last one to a question.
type answer[V any] struct {
	value V
	at    time.Time // as of when; zero: there is none
}

func newMemory[V any](c clock.Clock, timeout, keep time.Duration) *memory[V] {
	return &memory[V]{clock: c, timeout: timeout, keep: keep, last: map[string]answer[V]{}}
}

// of is the last answer to a question, and whether it is younger than an age.
func (m *memory[V]) of(question string, age time.Duration) (a answer[V], young bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.last[question]
	return a, ok && m.clock.Now().Sub(a.at) < age
}

// youngerThan is the first moment as of which an answer is younger than an age.
// One of exactly that age is asked for again, as it is then that this is due.
func youngerThan(age time.Duration, now time.Time) time.Time { return now.Add(-age + 1) }

// ask returns an answer as of since or later, by a call if need be.
func (m *memory[V]) ask(ctx context.Context, question string, since time.Time, call func(context.Context) (V, error)) (answer[V], error) {
	// Who is about to grow neither waits with those whose subnets are full, nor
	// they before it.
	flight := fmt.Sprint(question, " ", cloud.PriorityOf(ctx))
	for range 3 {
		if a, _ := m.of(question, 0); !a.at.IsZero() && !a.at.Before(since) {
			return a, nil
		}
		_, err, _ := m.calls.Do(flight, func() (any, error) {
			if a, _ := m.of(question, 0); !a.at.IsZero() && !a.at.Before(since) {
				return nil, nil // by a call that ended since it was missed
			}
			return nil, m.renew(ctx, question, call)
		})
		if err != nil {
			return answer[V]{}, err
		}
	}
	return answer[V]{}, errors.New("every answer was older than asked for")
}

// renew makes a call and remembers its answer.
func (m *memory[V]) renew(ctx context.Context, question string, call func(context.Context) (V, error)) error {
	now := m.clock.Now()
	// The caller's end must not be that of others who wait with it.
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
