package harness

import (
	"cmp"
	"os"
	"strconv"
	"testing"
)

// SampleVar is the environment variable that says which of many cases that are alike
// are run: "all" (`make e2e`), or the number of the sample, 0 when it is not set.
const SampleVar = "BERTH_SAMPLE"

// Sample returns the cases that a test runs of a list of those that are alike, such as a
// kill at each step: every n-th, and the first of them when there are fewer than n. The
// samples 0 to n-1 have all of them. An odd n has of steps in order, each with a place
// before and one after it, both kinds.
func Sample[T any](t *testing.T, n int, all []T) []T {
	t.Helper()
	asked := os.Getenv(SampleVar)
	part, err := sample(asked, n, all)
	if err != nil {
		t.Fatalf("%s is %q, expected all or a number from 0 on", SampleVar, asked)
	}
	if len(part) < len(all) {
		t.Logf("%d of %d cases: sample %s, %s=all has the others", len(part), len(all), cmp.Or(asked, "0"), SampleVar)
	}
	return part
}

// WithAll returns the cases if all are asked for, else none: they are too many, or too much
// like others, for the sample that is run by default.
func WithAll[T any](all []T) []T {
	if os.Getenv(SampleVar) == "all" {
		return all
	}
	return nil
}

// rotation is how many slices there are, of which a gate runs one.
const rotation = 10

// Rotate skips the test in gates of other slices: BERTH_SAMPLE is the slice number, 0 when it is not set,
// chosen by the commit; "all" (`make e2e`) runs everything.
func Rotate(t *testing.T, slice int) {
	t.Helper()
	asked := os.Getenv(SampleVar)
	mine, err := inSlice(asked, slice)
	if err != nil {
		t.Fatalf("%s is %q, expected all or a number from 0 on", SampleVar, asked)
	}
	if !mine {
		t.Skipf("OTHER SLICE: %d of 0 to %d; %s=%d or all runs it", slice, rotation-1, SampleVar, slice)
	}
}

func inSlice(asked string, slice int) (bool, error) {
	if asked == "all" {
		return true, nil
	}
	number, err := strconv.ParseUint(cmp.Or(asked, "0"), 10, 31)
	return int(number)%rotation == slice, err
}

func sample[T any](asked string, n int, all []T) (part []T, err error) {
	if asked == "all" {
		return all, nil
	}
	number, err := strconv.ParseUint(cmp.Or(asked, "0"), 10, 31)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	for i := int(number) % min(n, len(all)); i < len(all); i += n {
		part = append(part, all[i])
	}
	return part, nil
}
