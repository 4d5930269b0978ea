package crash

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berthnet/berth/lab"
)

// options are the flags of a soak. With neither a time nor a number of
// operations it is one short round of two modes, by the slice of the gate.
type options struct {
	time   time.Duration // after which no operation begins
	ops    int           // of each mode
	mode   string        // the only one, unless empty
	seed   uint64        // of the first round
	report string        // the file that it goes to; logs of failed rounds lie beside it
}

func (o *options) register(fs *flag.FlagSet) {
	fs.DurationVar(&o.time, "soak.time", 0, "make rounds of the soaks for this long")
	fs.IntVar(&o.ops, "soak.ops", 0, "make rounds until each mode has made this many operations")
	fs.StringVar(&o.mode, "soak.mode", "", "the only mode to soak")
	fs.Uint64Var(&o.seed, "soak.seed", 0, "the seed of the first round; 0: any")
	fs.StringVar(&o.report, "soak.report", "", "write the report to this file too")
}

// complete checks the options and chooses a seed if none is given.
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

// long tells whether there are rounds until a limit.
func (o *options) long() bool { return o.time > 0 || o.ops > 0 }

// soakModes are what may be soaked: the lab's modes, and what is soaked only if it is named.
var soakModes = append(slices.Clone(lab.Modes), "pool+ports", "egress", "node+dual", "operator+dual", "node+ipv6", "operator+ipv6", "operator+branches")

// chosen tells whether a mode is soaked, one that is not the lab's own only if it is named.
func (o *options) chosen(m lab.Mode, further bool) bool {
	return o.mode == "" && !further || o.mode == string(m)
}

// roundSeed is the seed of a round of a run, which begins with round 1. That of
// the first is the run's own, so that any round can be made again as a first one.
func roundSeed(run uint64, round int) uint64 {
	if round == 1 {
		return run
	}
	return uint64(1 + rand.New(rand.NewPCG(run, uint64(round))).Uint32())
}

// roundOps is how many operations the next round of a mode makes: those of a
// whole round, or what is left of the limit.
func (o *options) roundOps(whole, done int) int {
	if o.ops == 0 {
		return whole
	}
	return min(whole, o.ops-done)
}
