package crash

import (
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/lab"
)

func TestSoakReport(t *testing.T) {
	first, second := place{"pool", 1, 7, 400}, place{"pool", 2, 99, 400}
	counted := newTally("pool")
	counted.begin(first)
	counted.begin(second)
	for range 10 {
		counted.took(first, string(added), "node-1/p1", 20*time.Millisecond, nil)
	}
	counted.took(second, string(added), "node-2/p2", 12345*time.Millisecond, nil)
	counted.took(second, string(deleted), "node-2/p2", 250*time.Millisecond, nil)
	counted.took(second, string(added), "node-2/p3", time.Minute, errors.New("no address"))
	for i := range slowestSteps - 3 {
		counted.took(second, "settle", "", time.Second+time.Duration(i)*time.Second, nil)
	}
	for e, n := range map[event]int{
		daemonKill: 3, daemonStop: 1, daemonDeath: 2, operatorKill: 5, operatorHalt: 4, operatorDeath: 1,
		endedByItself: 6, apiServerKill: 8, ec2Outage: 9, failedRound: 1,
	} {
		counted.count(e, n)
	}
	counted.met(map[string]int{"throttle": 2})
	counted.met(map[string]int{"throttle": 3, "lostReply": 1})
	counted.violate(violation{second, duplicate, "10.2.0.1 was given to both"})
	counted.violate(violation{second, leak, "two\nlines, and " + strings.Repeat("x", 2*violationText)})

	want := `Soak: 1m40s, seed 7, 2 violations, interrupted

Mode pool
  rounds        2, 1 failed
  seeds         7 99
  operations    12 (11 ADD, 1 DEL), 0.1 a second, 1 failed
  kills         daemons 3, operators 5, API server 8
  at failpoints daemons 2, operators 1
  other trouble daemons stopped 1, operators halted 4, operators ended by themselves 6, EC2 away 9
  EC2 faults    lostReply 1, throttle 5
  violations    duplicate 1, cooling 0, leak 1, disagreement 0, policy 0, race or panic 0, stuck 0, other 0
  ADD           p50 20ms, p90 20ms, p99 12.3s, p99.9 12.3s, longest 12.3s
  DEL           p50 250ms, p90 250ms, p99 250ms, p99.9 250ms, longest 250ms
  slowest            1m0s  ADD node-2/p3 (round 2, seed 99)
                    12.3s  ADD node-2/p2 (round 2, seed 99)
                       7s  settle (round 2, seed 99)
                       6s  settle (round 2, seed 99)
                       5s  settle (round 2, seed 99)
                       4s  settle (round 2, seed 99)
                       3s  settle (round 2, seed 99)
                       2s  settle (round 2, seed 99)
                       1s  settle (round 2, seed 99)
                    250ms  DEL node-2/p2 (round 2, seed 99)

Violations
  pool round 2, seed 99: duplicate: 10.2.0.1 was given to both
      again: make soak SOAK_SEED=99 SOAK_MODE=pool SOAK_OPS=400
  pool round 2, seed 99: leak: two
      lines, and ` + strings.Repeat("x", violationText-len("two\nlines, and ")) + ` ...
      again: make soak SOAK_SEED=99 SOAK_MODE=pool SOAK_OPS=400
`
	got := report(options{seed: 7}, 100*time.Second, true, []*tally{counted})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the report differs (-want +got):\n%s", diff)
	}
	if got, want := progress(100*time.Second, []*tally{counted}), "   1m40s  pool round 2, seed 99: 12 operations, 19 kills, 2 violations\n"; got != want {
		t.Errorf("progress() = %q, want %q", got, want)
	}
}

func TestSoakReportIsBounded(t *testing.T) {
	counted := newTally("node")
	p := place{"node", 1, 1, 100}
	counted.begin(p)
	for i := range 1500 {
		counted.violate(violation{p, other, "wrong"})
		counted.took(p, "settle", "", time.Duration(i), nil)
	}
	if len(counted.violations) != keptViolations || len(counted.slowest) != slowestSteps || counted.slowest[0].took != 1499 {
		t.Errorf("%d violations and %d steps kept, the slowest %v, want the limits and 1499", len(counted.violations), len(counted.slowest), counted.slowest[0])
	}
	text := report(options{}, time.Hour, false, []*tally{counted})
	for _, want := range []string{"1500 violations\n", "other 1500\n", "and 1490 more in mode node\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("report lacks %q:\n%s", want, text)
		}
	}
}

func TestSoakPercentiles(t *testing.T) {
	var thousand []time.Duration
	for i := range 1000 {
		thousand = append(thousand, time.Duration(i+1))
	}
	for _, c := range []struct {
		name  string
		times []time.Duration
		p     float64
		want  time.Duration
	}{
		{"no times", nil, 50, 0},
		{"one time", thousand[:1], 50, 1},
		{"two times", thousand[:2], 50, 1},
		{"two times, above the first", thousand[:2], 51, 2},
		{"p50", thousand, 50, 500},
		{"p99.9", thousand, 99.9, 999},
		{"p100", thousand, 100, 1000},
	} {
		if got := percentile(c.times, c.p); got != c.want {
			t.Errorf("%s: percentile() = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSoakFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		want options
		err  string
	}{
		{args: "-soak.seed=7", want: options{seed: 7}},
		{args: "-soak.time=8h -soak.seed=7 -soak.mode=pool", want: options{time: 8 * time.Hour, seed: 7, mode: "pool"}},
		{args: "-soak.ops=100 -soak.time=0 -soak.seed=1 -soak.report=x", want: options{ops: 100, seed: 1, report: "x"}},
		{args: "-soak.time=8", err: "invalid value"},
		{args: "-soak.time=-1h", err: "soak.time is -1h0m0s"},
		{args: "-soak.ops=-1", err: "soak.ops is -1"},
		{args: "-soak.mode=eni", err: `soak.mode is "eni", expected one of [node operator pool port node+policies pool+ports egress node+dual operator+dual node+ipv6 operator+ipv6 operator+branches]`},
	} {
		var o options
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		o.register(fs)
		err := fs.Parse(strings.Fields(c.args))
		if err == nil {
			err = o.complete()
		}
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error = %v, want one containing %q", c.args, err, c.err)
		case c.err == "" && (err != nil || o != c.want):
			t.Errorf("%s: options = %+v, error = %v, want %+v", c.args, o, err, c.want)
		}
	}
}

func TestSoakModes(t *testing.T) {
	var titles []lab.Mode
	for _, m := range slices.Concat(modes, furtherSoaks) {
		titles = append(titles, m.title())
	}
	if !slices.Equal(titles, soakModes) {
		t.Errorf("modes = %v, want those of soakModes, %v", titles, soakModes)
	}
}

func TestEveryRunHasASeed(t *testing.T) {
	var o options
	if err := o.complete(); err != nil || o.seed == 0 {
		t.Errorf("seed = %d, error = %v, want a nonzero seed", o.seed, err)
	}
}

// A run with the seed of a round repeats that round.
func TestSeedsOfRounds(t *testing.T) {
	if got := roundSeed(7, 1); got != 7 {
		t.Errorf("seed of the first round = %d, want 7, the run's", got)
	}
	seen := map[uint64]bool{}
	for round := 1; round <= 200; round++ {
		seed := roundSeed(7, round)
		if seed == 0 || seen[seed] || seed != roundSeed(7, round) {
			t.Errorf("seed of round %d = %d, want a unique, reproducible one", round, seed)
		}
		seen[seed] = true
	}
}

func TestOperationsOfRounds(t *testing.T) {
	for _, c := range []struct{ limit, whole, done, want int }{
		{0, 400, 0, 400},
		{0, 400, 8000, 400},
		{1000, 400, 400, 400},
		{1000, 400, 800, 200},
		{100, 400, 0, 100},
	} {
		o := options{ops: c.limit}
		if got := o.roundOps(c.whole, c.done); got != c.want {
			t.Errorf("limit %d, %d done, rounds of %d: roundOps() = %d, want %d", c.limit, c.done, c.whole, got, c.want)
		}
	}
}
