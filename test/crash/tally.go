package crash

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/lab"
)

// event is what a soak counts.
type event string

const (
	added           event = "ADD"
	deleted         event = "DEL"
	given           event = "NIC given" // to a running pod
	taken           event = "NIC taken"
	daemonKill      event = "daemon killed"
	daemonStop      event = "daemon stopped"
	daemonDeath     event = "daemon died at a failpoint"
	operatorKill    event = "operator killed"
	operatorHalt    event = "operator halted"
	operatorDeath   event = "operator died at a failpoint"
	endedByItself   event = "operator ended by itself"
	apiServerKill   event = "API server killed"
	ec2Outage       event = "EC2 outage"
	providerFault   event = "provider's fault"
	portEdit        event = "port edited"
	ovsdbKill       event = "OVSDB killed"
	nodeLoss        event = "node lost"
	forcedDelete    event = "forced deletion"
	egressEdit      event = "Egress, pod or namespace changed"
	givenUp         event = "pod given up" // it named an Egress that it may not use, for long
	gatewayKill     event = "gateway killed"
	gatewayDeletion event = "gateway's pod deleted"
	rolloutRestart  event = "rollout restarted"
	failed          event = "failed operation"
	failedRound     event = "failed round"
)

// kind is how something is wrong.
type kind string

const (
	duplicate    kind = "duplicate"     // an address that two pods have
	tooSoon      kind = "cooling"       // an address that was given out while it cooled
	leak         kind = "leak"          // what does not go away
	disagreement kind = "disagreement"  // kernel, records, introspection, books and objects contradict each other
	badLog       kind = "race or panic" // what a program logged
	other        kind = "other"         // a failed operation, a time limit, the lab itself
)

var kinds = []kind{duplicate, tooSoon, leak, disagreement, badLog, other}

// place is a round, to find it and to repeat it.
type place struct {
	mode  lab.Mode
	round int
	seed  uint64
	ops   int // that it was to make
}

func (p place) String() string { return fmt.Sprintf("%s round %d, seed %d", p.mode, p.round, p.seed) }

// again is the command that makes the round once more.
func (p place) again() string {
	return fmt.Sprintf("make soak SOAK_SEED=%d SOAK_MODE=%s SOAK_OPS=%d", p.seed, p.mode, p.ops)
}

type violation struct {
	place
	kind kind
	text string
}

// step is something that took time.
type step struct {
	place
	what string // ADD node-1/p7, settle
	took time.Duration
}

// How much of what could be much a tally remembers.
const (
	slowestSteps   = 10
	keptViolations = 10 // of each kind
)

// tally is what happened in one mode.
type tally struct {
	mode lab.Mode

	mu         sync.Mutex // guards all below
	rounds     []place
	round      place // the last one
	events     map[event]int
	faults     map[string]int            // that calls of EC2 met, by kind
	times      map[event][]time.Duration // of operations
	slowest    []step                    // the slowest first
	wrong      map[kind]int
	violations []violation // the first of each kind
}

func newTally(m lab.Mode) *tally {
	return &tally{
		mode: m, events: map[event]int{}, faults: map[string]int{}, times: map[event][]time.Duration{}, wrong: map[kind]int{},
	}
}

func (t *tally) begin(p place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds, t.round = append(t.rounds, p), p
}

func (t *tally) count(e event, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events[e] += n
}

func (t *tally) of(e event) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events[e]
}

// copy is what was counted until now.
func (t *tally) copy() map[event]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.events)
}

func (t *tally) met(faults map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for kind, n := range faults {
		t.faults[kind] += n
	}
}

// took books a step, and an operation as one: who is its pod. One that failed is
// among the slowest steps at most.
func (t *tally) took(p place, what, who string, d time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event(what); {
	case !slices.Contains([]event{added, deleted, given, taken}, e):
	case err != nil:
		t.events[failed]++
	default:
		t.events[e]++
		t.times[e] = append(t.times[e], d)
	}
	if who != "" {
		what += " " + who
	}
	s := step{p, what, d}
	i, _ := slices.BinarySearchFunc(t.slowest, s, func(a, b step) int { return cmp.Compare(b.took, a.took) })
	if i < slowestSteps {
		t.slowest = slices.Insert(t.slowest, i, s)
		t.slowest = t.slowest[:min(len(t.slowest), slowestSteps)]
	}
}

func (t *tally) violate(v violation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wrong[v.kind]++; t.wrong[v.kind] <= keptViolations {
		t.violations = append(t.violations, v)
	}
}

// made is how many operations succeeded.
func (t *tally) made() int { return t.of(added) + t.of(deleted) }

// kills are all sudden ends of programs.
func (t *tally) kills() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events[daemonKill] + t.events[operatorKill] + t.events[apiServerKill] + t.events[daemonDeath] + t.events[operatorDeath] + t.events[ovsdbKill] + t.events[gatewayKill]
}

// violated is how often something was wrong.
func (t *tally) violated() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.wrong {
		n += k
	}
	return n
}
