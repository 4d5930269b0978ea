// Package crash kills programs, in every mode: at every failpoint, and at random during cloud faults
// (docs/contribute/architecture.md, "Crash safety"). Each time the kernel, the records on disk, introspection,
// the lab's EC2 and the API objects must agree again, with no address assigned twice and nothing leaked. A soak
// (TestSoak) is one short round of two modes or, with flags, any number of rounds (make soak).
package crash

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/lab"
)

// violationText is the maximum length of a violation in the report, in bytes.
const violationText = 600

// report returns the final report of a soak.
func report(o options, elapsed time.Duration, interrupted bool, tallies []*tally) string {
	var b strings.Builder
	wrong, end := 0, ""
	for _, t := range tallies {
		wrong += t.violated()
	}
	if interrupted {
		end = ", interrupted"
	}
	fmt.Fprintf(&b, "Soak: %v, seed %d, %d violations%s\n", elapsed.Round(time.Second), o.seed, wrong, end)
	for _, t := range tallies {
		t.report(&b, elapsed)
	}
	if wrong > 0 {
		fmt.Fprintf(&b, "\nViolations\n")
	}
	for _, t := range tallies {
		t.reportViolations(&b)
	}
	return b.String()
}

// progress returns a line for each mode, printed during the soak.
func progress(elapsed time.Duration, tallies []*tally) string {
	var b strings.Builder
	for _, t := range tallies {
		made, kills, wrong := t.made(), t.kills(), t.violated()
		t.mu.Lock()
		fmt.Fprintf(&b, "%8v  %v: %d operations, %d kills, %d violations\n", elapsed.Round(time.Second), t.round, made, kills, wrong)
		t.mu.Unlock()
	}
	return b.String()
}

func (t *tally) report(b *strings.Builder, elapsed time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.events
	line := func(what, format string, args ...any) {
		fmt.Fprintf(b, "  %-14s%s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(b, "\nMode %s\n", t.mode)
	line("rounds", "%d, %d failed", len(t.rounds), e[failedRound])
	var seeds []string
	for _, p := range t.rounds {
		seeds = append(seeds, fmt.Sprint(p.seed))
	}
	line("seeds", "%s", strings.Join(seeds, " "))
	ops := e[added] + e[deleted]
	line("operations", "%d (%d ADD, %d DEL), %.1f a second, %d failed", ops, e[added], e[deleted], float64(ops)/max(elapsed.Seconds(), 1), e[failed])
	line("kills", "daemons %d, operators %d, API server %d", e[daemonKill], e[operatorKill], e[apiServerKill])
	line("at failpoints", "daemons %d, operators %d", e[daemonDeath], e[operatorDeath])
	line("other trouble", "daemons stopped %d, operators halted %d, operators ended by themselves %d, EC2 away %d",
		e[daemonStop], e[operatorHalt], e[endedByItself], e[ec2Outage])
	if n := e[providerFault] + e[portEdit] + e[ovsdbKill] + e[nodeLoss] + e[forcedDelete]; n > 0 {
		line("of ports", "faults of the provider %d, ports changed behind Berth's back %d, OVSDB killed %d, nodes lost %d, pods deleted by force %d",
			e[providerFault], e[portEdit], e[ovsdbKill], e[nodeLoss], e[forcedDelete])
		line("running pods", "%d NICs given, %d taken", e[given], e[taken])
	}
	if e[egressEdit] > 0 {
		line("of Egresses", "changes of Egresses, pods and namespaces %d, gateways killed %d, their pods deleted %d, rollouts restarted %d, pods given up %d",
			e[egressEdit], e[gatewayKill], e[gatewayDeletion], e[rolloutRestart], e[givenUp])
	}
	if e[policyEdit] > 0 {
		line("of policies", "changes of policies, pods and namespaces %d, sandboxes replaced %d", e[policyEdit], e[podRestart])
		line("connections", "rightly refused %d, rightly let through %d, of both while programs were missing %d, undecided %d", e[policyRefusal], e[policyPass], e[policyTrouble], e[policyEither])
	}
	line("EC2 faults", "%s", counts(slices.Sorted(maps.Keys(t.faults)), t.faults))
	line("violations", "%s", counts(kinds, t.wrong))
	for _, what := range []event{added, deleted} {
		times := slices.Sorted(slices.Values(t.times[what]))
		line(string(what), "p50 %s, p90 %s, p99 %s, p99.9 %s, longest %s", short(percentile(times, 50)), short(percentile(times, 90)),
			short(percentile(times, 99)), short(percentile(times, 99.9)), short(percentile(times, 100)))
	}
	for i, s := range t.slowest {
		what := ""
		if i == 0 {
			what = "slowest"
		}
		line(what, "%9s  %s (round %d, seed %d)", short(s.took), s.what, s.round, s.seed)
	}
}

// percentile returns the smallest of sorted times that p percent do not exceed; 0 if there are none.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(math.Ceil(p*float64(len(sorted))/100))-1]
}

func (t *tally) reportViolations(b *strings.Builder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.violations {
		text := v.text
		if len(text) > violationText {
			text = text[:violationText] + " ..."
		}
		fmt.Fprintf(b, "  %v: %s: %s\n", v.place, v.kind, strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      "))
		fmt.Fprintf(b, "      again: %s\n", v.again())
	}
	total := 0
	for _, n := range t.wrong {
		total += n
	}
	if left := total - len(t.violations); left > 0 {
		fmt.Fprintf(b, "  and %d more in mode %s\n", left, t.mode)
	}
}

// counts formats as "a 1, b 0", or "none" without keys.
func counts[K ~string](keys []K, n map[K]int) string {
	var list []string
	for _, k := range keys {
		list = append(list, fmt.Sprintf("%s %d", k, n[k]))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// short rounds a duration to about three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(100 * time.Microsecond).String()
	}
}

type event string

const (
	added           event = "ADD"
	deleted         event = "DEL"
	given           event = "NIC given" // added to a running pod
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
	givenUp         event = "pod given up" // named an Egress that it may not use, for too long
	gatewayKill     event = "gateway killed"
	gatewayDeletion event = "gateway's pod deleted"
	rolloutRestart  event = "rollout restarted"
	policyEdit      event = "policy, pod or namespace changed"
	policyRefusal   event = "connection refused"
	policyPass      event = "connection let through"
	policyTrouble   event = "connection judged while programs were missing"
	policyEither    event = "connection that could be either"
	podRestart      event = "sandbox replaced"
	failed          event = "failed operation"
	failedRound     event = "failed round"
)

// kind is the kind of a violation.
type kind string

const (
	duplicate    kind = "duplicate"     // an address of two pods
	tooSoon      kind = "cooling"       // an address assigned while cooling
	leak         kind = "leak"          // leftover state
	disagreement kind = "disagreement"  // kernel, records, introspection, EC2 and objects contradict each other
	policyBreach kind = "policy"        // a connection was let through that all states forbid, or refused that all allow
	badLog       kind = "race or panic" // in the log of a program
	stuck        kind = "stuck"         // a program did not end when it was told to
	other        kind = "other"         // a failed operation, a time limit, the lab itself
)

var kinds = []kind{duplicate, tooSoon, leak, disagreement, policyBreach, badLog, stuck, other}

// place identifies a round.
type place struct {
	mode  lab.Mode
	round int
	seed  uint64
	ops   int // planned operations
}

func (p place) String() string { return fmt.Sprintf("%s round %d, seed %d", p.mode, p.round, p.seed) }

// again returns the command that repeats the round.
func (p place) again() string {
	return fmt.Sprintf("make soak SOAK_SEED=%d SOAK_MODE=%s SOAK_OPS=%d", p.seed, p.mode, p.ops)
}

type violation struct {
	place
	kind kind
	text string
}

// step is a timed step.
type step struct {
	place
	what string // ADD node-1/p7, settle
	took time.Duration
}

// Limits of the data kept in a tally.
const (
	slowestSteps   = 10
	keptViolations = 10 // per kind
)

// tally counts what happens in one mode.
type tally struct {
	mode lab.Mode

	mu         sync.Mutex // guards all below
	rounds     []place
	round      place // the last round
	events     map[event]int
	faults     map[string]int            // injected into EC2 calls, by kind
	times      map[event][]time.Duration // durations of operations
	slowest    []step                    // slowest first
	wrong      map[kind]int
	violations []violation // the first ones of each kind
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

// took records a pod's step. Failed steps are among the slowest steps but do not count as operations.
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

// made returns how many operations succeeded.
func (t *tally) made() int { return t.of(added) + t.of(deleted) }

// kills returns the number of abrupt ends of programs.
func (t *tally) kills() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events[daemonKill] + t.events[operatorKill] + t.events[apiServerKill] + t.events[daemonDeath] + t.events[operatorDeath] + t.events[ovsdbKill] + t.events[gatewayKill]
}

// violated returns the number of violations.
func (t *tally) violated() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.wrong {
		n += k
	}
	return n
}

// options are the flags of a soak. Without a time or a number of operations it is one short round of two modes,
// chosen by the gate's slice.
type options struct {
	time   time.Duration // no operation starts later
	ops    int           // operations per mode
	mode   string        // the only mode, unless empty
	seed   uint64        // seed of the first round
	report string        // file for the report; logs of failed rounds are stored next to it
}

func (o *options) register(fs *flag.FlagSet) {
	fs.DurationVar(&o.time, "soak.time", 0, "make rounds of the soaks for this long")
	fs.IntVar(&o.ops, "soak.ops", 0, "make rounds until each mode has made this many operations")
	fs.StringVar(&o.mode, "soak.mode", "", "the only mode to soak")
	fs.Uint64Var(&o.seed, "soak.seed", 0, "the seed of the first round; 0: any")
	fs.StringVar(&o.report, "soak.report", "", "write the report to this file too")
}

// complete checks the options and chooses a seed if none is set.
func (o *options) complete() error {
	switch {
	case o.time < 0:
		return fmt.Errorf("soak.time is %v, expected a time from 0", o.time)
	case o.ops < 0:
		return fmt.Errorf("soak.ops is %d, expected a number from 0", o.ops)
	case o.mode != "" && !slices.Contains(soakModes, lab.Mode(o.mode)):
		return fmt.Errorf("soak.mode is %q, expected one of %v", o.mode, soakModes)
	}
	if o.seed == 0 {
		o.seed = uint64(1 + rand.Uint32())
	}
	return nil
}

// long reports whether the soak has rounds until a limit.
func (o *options) long() bool { return o.time > 0 || o.ops > 0 }

// soakModes are the lab's modes, and those soaked only by name.
var soakModes = append(slices.Clone(lab.Modes), "node+policies", "pool+ports", "egress", "node+dual", "operator+dual", "node+ipv6", "operator+ipv6", "operator+branches")

// chosen reports whether a mode is soaked.
func (o *options) chosen(m lab.Mode, further bool) bool {
	return o.mode == "" && !further || o.mode == string(m)
}

// roundSeed returns the seed of a round. The first round uses the run's seed, so that any round can be repeated as a
// first one.
func roundSeed(run uint64, round int) uint64 {
	if round == 1 {
		return run
	}
	return uint64(1 + rand.New(rand.NewPCG(run, uint64(round))).Uint32())
}

// roundOps returns how many operations the next round of a mode makes: those of a whole round, or the rest up to the
// limit.
func (o *options) roundOps(whole, done int) int {
	if o.ops == 0 {
		return whole
	}
	return min(whole, o.ops-done)
}
