package harness

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
)

// SampleVar is the environment variable with the sample to run: "all" (`make sampled` and `make
// families`), or a slice from 0, the default, to Slices-1.
const SampleVar = "BERTH_SAMPLE"

// Slices is the number of gates in a row that run everything, each with the next slice.
const Slices = 10

// EvenSlices are for the first of two tests that take turns.
var EvenSlices = []int{0, 2, 4, 6, 8}

// OddSlices are for the second.
var OddSlices = []int{1, 3, 5, 7, 9}

// errSlice is about the value of SampleVar.
var errSlice = errors.New("not a slice")

// Sample returns every n-th of cases that are alike, such as kills at each step, and one if there are
// fewer than n, which is at most Slices. All slices together have all cases. An odd n selects both
// kinds of steps that come in pairs of before and after. In a sample within a sample the numbers may
// have no common divisor, or some pairs never run.
func Sample[T any](t *testing.T, n int, all []T) []T {
	t.Helper()
	if n > Slices {
		t.Fatalf("one case in %d is sampled, expected at most %d: %d slices must have all", n, Slices, Slices)
	}
	number, every := asked(t)
	part := all
	if !every {
		part = sample(number, n, all)
	}
	if len(part) < len(all) {
		t.Logf("%d of %d cases: slice %d, %s=all has the others", len(part), len(all), number, SampleVar)
	}
	return part
}

// Rotate skips the test in gates of other slices. Without a slice, only make e2e runs it. If the test
// samples as well, its slices must still reach every n-th case: of five even or odd slices, n may be 3
// or 5.
func Rotate(t *testing.T, slice ...int) {
	t.Helper()
	if number, every := asked(t); !due(number, every, slice) {
		t.Skipf("OTHER SLICE: this is slice %d, the test runs in the slices %v and with %s=all", number, slice, SampleVar)
	}
}

// due reports whether a test of some slices runs.
func due(number int, every bool, of []int) bool { return every || slices.Contains(of, number) }

// WithAll returns cases that run only if all are asked for.
func WithAll[T any](all []T) []T {
	if os.Getenv(SampleVar) == "all" {
		return all
	}
	return nil
}

// asked is the slice that SampleVar asks for, or that it asks for all.
func asked(t *testing.T) (number int, every bool) {
	t.Helper()
	value := os.Getenv(SampleVar)
	number, every, err := parseSlice(value)
	if err != nil {
		t.Fatalf("%s is %q, expected all or a number from 0 to %d", SampleVar, value, Slices-1)
	}
	return number, every
}

func parseSlice(value string) (number int, every bool, err error) {
	if value == "all" {
		return 0, true, nil
	}
	number, err = strconv.Atoi(cmp.Or(value, "0"))
	if err == nil && (number < 0 || number >= Slices) {
		err = errSlice
	}
	return number, false, err
}

func sample[T any](number, n int, all []T) (part []T) {
	if len(all) == 0 {
		return nil
	}
	for i := number % min(n, len(all)); i < len(all); i += n {
		part = append(part, all[i])
	}
	return part
}
