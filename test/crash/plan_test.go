package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// plan determines after how many operations of a round which trouble comes. It depends only on the seed. A trouble is
// repeated only after all others of its mode.
type plan struct {
	of   mode
	dice *rand.Rand
	left []trouble // troubles before any is repeated
	at   int       // operations before the last trouble
}

func newPlan(m mode, seed uint64) *plan {
	return &plan{of: m, dice: rand.New(rand.NewPCG(seed, 0))}
}

func (p *plan) next() (at int, t trouble) {
	if len(p.left) == 0 {
		p.left = slices.Clone(p.of.troubles)
		p.dice.Shuffle(len(p.left), func(i, j int) { p.left[i], p.left[j] = p.left[j], p.left[i] })
	}
	shortest, longest := p.of.distance()
	p.at += shortest + p.dice.IntN(longest-shortest+1)
	t, p.left = p.left[0], p.left[1:]
	return p.at, t
}

// distance returns the minimum and maximum number of operations between two troubles.
func (m mode) distance() (shortest, longest int) { return m.every - m.every/2, m.every + m.every/2 }

// bounds returns the minimum and maximum number of troubles of the kinds that of selects, in a number of operations.
func (m mode) bounds(operations int, of func(trouble) bool) (least, most int) {
	kinds, all := 0, len(m.troubles)
	for _, t := range m.troubles {
		if of(t) {
			kinds++
		}
	}
	shortest, longest := m.distance()
	few, many := operations/longest, operations/shortest
	least = few/all*kinds + max(0, few%all-(all-kinds))
	most = many/all*kinds + min(kinds, many%all)
	return least, most
}

// paced returns an error if a round has more or fewer kills than its operations allow.
func (m mode) paced(operations int, kills map[event]int) error {
	var errs []error
	total := 0
	check := func(what event, got int, of func(trouble) bool) {
		if least, most := m.bounds(operations, of); got < least || got > most {
			errs = append(errs, fmt.Errorf("%s: %d times in %d operations, want %d to %d", what, got, operations, least, most))
		}
	}
	for _, e := range []event{daemonKill, operatorKill, apiServerKill, ovsdbKill} {
		total += kills[e]
		check(e, kills[e], func(t trouble) bool { return t.kills == e })
	}
	check("a program killed", total, func(t trouble) bool { return t.kills != "" && t.kills != gatewayKill })
	return errors.Join(errs...)
}

// TestPlans checks that the kills of every plan satisfy paced, that paced detects too few and too many kills, and
// that each mode's short round has kills of every kind.
func TestPlans(t *testing.T) {
	for _, m := range slices.Concat(modes, furtherSoaks) {
		for seed := range uint64(200) {
			kills, last := map[event]int{}, 0
			for p := newPlan(m, seed); ; {
				at, t := p.next()
				if at > m.ops {
					break
				}
				kills[t.kills]++
				last = at
			}
			if err := m.paced(m.ops, kills); err != nil {
				t.Fatalf("%s mode, seed %d: %v", m.title(), seed, err)
			}
			if _, longest := m.distance(); m.ops-last > longest {
				t.Errorf("%s mode, seed %d: no trouble after %d of %d operations", m.title(), seed, last, m.ops)
			}
		}
		least, most := m.bounds(m.ops, func(t trouble) bool { return t.kills == daemonKill })
		for _, n := range []int{least - 1, most + 1} {
			if n >= 0 && m.paced(m.ops, map[event]int{daemonKill: n}) == nil {
				t.Errorf("%s mode: paced() accepts %d daemon kills, want an error outside %d to %d", m.title(), n, least, most)
			}
		}
	}
	for _, m := range modes {
		if least, most := m.bounds(m.ops, func(t trouble) bool { return t.kills != "" }); least < 5 || most > m.ops {
			t.Errorf("%s mode: %d to %d kills in a short round, want at least 5 and not more than operations", m.title(), least, most)
		}
	}
}
