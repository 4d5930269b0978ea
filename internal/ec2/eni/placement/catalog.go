package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

const (
	callTimeout = 5 * time.Minute // of a question that a node waits for, its wait for the rate limit included
	groupsAge   = time.Minute     // for which security groups found by tags are used for new ENIs
	routesAge   = 5 * time.Minute // for which route tables are used
	// outdatedAge is how old the descriptions may be by which ENIs are judged outdated.
	outdatedAge = 10 * time.Minute
)

// Catalog is what EC2 said of subnets, security groups and route tables. All reconcilers of a process
// share one. Its methods may be called concurrently.
type Catalog struct {
	Subnets *Subnets

	api    cloud.API
	groups *cache[[]string] // by VPC and tags
	routes *cache[vpcRoutes]
}

// NewCatalog returns an empty catalog.
func NewCatalog(api cloud.API, c clock.Clock) *Catalog {
	return &Catalog{
		Subnets: newSubnets(api, c), api: api,
		groups: newCache[[]string](c, callTimeout, 2*outdatedAge), routes: newCache[vpcRoutes](c, time.Minute, 0),
	}
}

// findGroups returns the IDs of the security groups of a VPC that carry all tags. It is an error of
// class cloud.Gone if there is none.
func (s *Catalog) findGroups(ctx context.Context, vpc string, tags map[string]string, now time.Time) ([]string, error) {
	text := tagText(tags)
	a, err := s.groups.ask(ctx, groupsQuestion(vpc, tags), youngerThan(groupsAge, now), func(ctx context.Context) ([]string, error) {
		ids, err := s.api.SecurityGroups(ctx, vpc, tags)
		if err != nil {
			return nil, fmt.Errorf("find the security groups with tags %s: %w", text, err)
		}
		if len(ids) == 0 {
			return nil, &cloud.Error{Class: cloud.Gone, Op: "DescribeSecurityGroups", Message: fmt.Sprintf("no security group of %s has the tags %s", vpc, text)}
		}
		return ids, nil
	})
	return a.value, err
}

// foundGroups returns the groups that were found last, and whether that is at most outdatedAge ago.
func (s *Catalog) foundGroups(vpc string, tags map[string]string) (ids []string, fresh bool) {
	a, fresh := s.groups.get(groupsQuestion(vpc, tags), outdatedAge)
	return a.value, fresh
}

func groupsQuestion(vpc string, tags map[string]string) string { return vpc + " " + tagText(tags) }

// tagText formats tags as "a=1,b=2".
func tagText(tags map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, k+"="+tags[k])
	}
	return strings.Join(out, ",")
}

// vpcRoutes are the route tables of one VPC.
type vpcRoutes struct {
	main string            // ID of the main one
	of   map[string]string // ID by subnet
}

// table returns the ID of a subnet's route table.
func (v vpcRoutes) table(subnet string) string {
	if t, ok := v.of[subnet]; ok {
		return t
	}
	return v.main
}

// findRoutes loads the route tables of a VPC unless they are fresh.
func (s *Catalog) findRoutes(ctx context.Context, vpc string, now time.Time) error {
	_, err := s.routes.ask(ctx, vpc, youngerThan(routesAge, now), func(ctx context.Context) (vpcRoutes, error) {
		list, err := s.api.RouteTables(ctx, vpc)
		if err != nil {
			return vpcRoutes{}, fmt.Errorf("find the route tables of %s: %w", vpc, err)
		}
		v := vpcRoutes{of: map[string]string{}}
		for _, t := range list {
			if t.Main {
				v.main = t.ID
			}
			for _, subnet := range t.Subnets {
				v.of[subnet] = t.ID
			}
		}
		return v, nil
	})
	return err
}

// cache keeps EC2's answers to questions that many nodes ask. An answer serves every caller for whom it
// is recent enough, and callers that ask the same question while a call is in flight share that call.
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

// youngerThan returns the earliest time at which an answer that is younger than age at now can have
// been given. An answer of exactly that age is too old, because refreshes are scheduled for the moment
// in which it reaches that age.
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
