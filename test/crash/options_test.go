package crash

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/lab"
)

func TestOptions(t *testing.T) {
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
		{args: "-soak.mode=eni", err: `soak.mode is "eni", expected one of [node operator pool port pool+ports egress node+dual operator+dual node+ipv6 operator+ipv6 operator+branches]`},
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
			t.Errorf("%s: error %v, want %q", c.args, err, c.err)
		case c.err == "" && (err != nil || o != c.want):
			t.Errorf("%s: %+v, error %v, want %+v", c.args, o, err, c.want)
		}
	}
}

func TestSoakModes(t *testing.T) {
	var titles []lab.Mode
	for _, m := range slices.Concat(modes, furtherSoaks) {
		titles = append(titles, m.title())
	}
	if !slices.Equal(titles, soakModes) {
		t.Errorf("there are soaks %v, and may be asked for %v", titles, soakModes)
	}
}

func TestEveryRunHasASeed(t *testing.T) {
	var o options
	if err := o.complete(); err != nil || o.seed == 0 {
		t.Errorf("seed %d, error %v", o.seed, err)
	}
}

// A round that went wrong is made again by a run that begins with its seed.
func TestSeedsOfRounds(t *testing.T) {
	if got := roundSeed(7, 1); got != 7 {
		t.Errorf("the first round has seed %d, want the run's", got)
	}
	seen := map[uint64]bool{}
	for round := 1; round <= 200; round++ {
		seed := roundSeed(7, round)
		if seed == 0 || seen[seed] || seed != roundSeed(7, round) {
			t.Errorf("round %d has seed %d, not one of its own", round, seed)
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
			t.Errorf("limit %d, %d of %d done: %d, want %d", c.limit, c.done, c.whole, got, c.want)
		}
	}
}
