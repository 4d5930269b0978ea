package harness

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
)

// SampleVar is the environment variable that says which of many cases that are alike
// are run: "all" (`make sampled` and `make families`), or the number of a slice from 0 to Slices-1, 0 when it is not set.
const SampleVar = "BERTH_SAMPLE"

// Slices is how many gates in a row run all that is sampled and all that rotates, if each
// has the next slice.
const Slices = 10

// EvenSlices are those of the first of two tests, or halves of one, that take turns.
var EvenSlices = []int{0, 2, 4, 6, 8}

// OddSlices are those of the second.
var OddSlices = []int{1, 3, 5, 7, 9}

// errSlice says that SampleVar has no value that it may have.
var errSlice = errors.New("not a slice")

// Sample returns the cases that a test runs of a list of those that are alike, such as a
// kill at each step: every n-th, and one of them when there are fewer than n, which is at
// most Slices. All slices together have all cases. An odd n has of steps in order, each with a
// place before and one after it, both kinds. Of samples within a sample no two numbers may have a
// common divisor, or some pairs are never run.
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

// Rotate skips the test in gates of other slices. Without a slice, it runs in make e2e alone. If it samples as well, every n-th case must
// still be in some of them: of five slices that are even or odd, n may be 3 or 5.
func Rotate(t *testing.T, slice ...int) {
	t.Helper()
	if number, every := asked(t); !due(number, every, slice) {
		t.Skipf("OTHER SLICE: this is slice %d, the test runs in the slices %v and with %s=all", number, slice, SampleVar)
	}
}

// due tells whether what belongs to some slices is run.
func due(number int, every bool, of []int) bool { return every || slices.Contains(of, number) }

// WithAll returns the cases if all are asked for, else none: they are too many, or too much
// like others, for the sample that is run by default.
func WithAll[T any](all []T) []T {
	if os.Getenv(SampleVar) == "all" {
		return all
	}
	return nil
}

// asked is which slice SampleVar asks for, or that it asks for every one.
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
