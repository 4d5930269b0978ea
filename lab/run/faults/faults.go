// Package faults decides at random which program is killed next. A seed repeats its decisions.
package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
)

// EnvVar names the variable that gives the seed.
const EnvVar = "BERTH_FAULT_SEED"

// What is killed in most stories, besides the daemons.
const (
	APIServer = "API server"
	Tool      = "tool"
)

// Faults decides, and counts what happened.
type Faults struct {
	*rand.Rand
	Seed  uint64
	count map[string]int
}

// New returns faults with the seed of the environment, or with a random one.
func New() (*Faults, error) {
	seed := uint64(rand.Uint32())
	if text := os.Getenv(EnvVar); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%s is %q: expected a number", EnvVar, text)
		}
	}
	return &Faults{Rand: rand.New(rand.NewPCG(seed, 0)), Seed: seed, count: map[string]int{}}, nil
}

// String is what repeats the decisions.
func (f *Faults) String() string { return fmt.Sprintf("%s=%d", EnvVar, f.Seed) }

// Shuffled returns faults in random order.
func (f *Faults) Shuffled(kinds ...string) []string {
	kinds = slices.Clone(kinds)
	f.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return kinds
}

// Did counts a fault that happened.
func (f *Faults) Did(kind string) { f.count[kind]++ }

// Count returns how often a fault happened since Reset.
func (f *Faults) Count(kind string) int { return f.count[kind] }

// Counts describes how often each fault happened since Reset.
func (f *Faults) Counts() string { return fmt.Sprint(f.count)[len("map"):] }

// Reset forgets the counts.
func (f *Faults) Reset() { clear(f.count) }

// Missing returns those faults that did not happen since Reset.
func (f *Faults) Missing(kinds ...string) []string {
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return f.count[kind] > 0 })
}
