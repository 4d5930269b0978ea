package harness

import (
	"slices"
	"testing"
)

func TestSample(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6}
	for _, tc := range []struct {
		number, n int
		all, want []int
	}{
		{number: 0, n: 3, all: all, want: []int{0, 3, 6}},
		{number: 1, n: 3, all: all, want: []int{1, 4}},
		{number: 5, n: 3, all: all, want: []int{2, 5}},
		{number: 1, n: 1, all: all, want: all},
		{number: 1, n: 10, all: all, want: []int{1}},
		{number: 8, n: 10, all: all, want: []int{1}},
		{n: 3},
	} {
		if got := sample(tc.number, tc.n, tc.all); !slices.Equal(got, tc.want) {
			t.Errorf("slice %d, one in %d of %v: %v, want %v", tc.number, tc.n, tc.all, got, tc.want)
		}
	}
}

// All slices together have all cases, and so have those of a sample within a sample whose
// numbers have no common divisor.
func TestSlicesHaveAll(t *testing.T) {
	for n := 1; n <= Slices; n++ {
		for count := 1; count < 25; count++ {
			all, seen := make([]int, count), map[int]bool{}
			for i := range all {
				all[i] = i
			}
			for number := range Slices {
				part := sample(number, n, all)
				if len(part) == 0 {
					t.Errorf("slice %d, one in %d of %d cases, has none", number, n, count)
				}
				for _, i := range part {
					seen[i] = true
				}
			}
			if len(seen) != count {
				t.Errorf("one in %d of %d cases: all slices have only %v", n, count, seen)
			}
		}
	}
	pairs, three, two := map[[2]int]bool{}, []int{0, 1, 2}, []int{0, 1, 2, 3, 4, 5, 6}
	for number := range Slices {
		for _, i := range sample(number, 3, three) {
			for _, k := range sample(number, 2, two) {
				pairs[[2]int{i, k}] = true
			}
		}
	}
	if len(pairs) != len(three)*len(two) {
		t.Errorf("a sample within a sample has only %v", pairs)
	}
}

func TestParseSlice(t *testing.T) {
	for value, want := range map[string]int{"": 0, "0": 0, "9": 9} {
		if got, every, err := parseSlice(value); err != nil || every || got != want {
			t.Errorf("%q is slice %d, every one %v, %v; want %d", value, got, every, err, want)
		}
	}
	if _, every, err := parseSlice("all"); err != nil || !every {
		t.Errorf("all is not every slice: %v", err)
	}
	for _, value := range []string{"some", "-1", "1.5", "10"} {
		if got, every, err := parseSlice(value); err == nil {
			t.Errorf("%q is slice %d, every one %v", value, got, every)
		}
	}
}

// Five slices that are even or odd have all cases of a sample of one in three or five.
func TestHalfOfSlices(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, half := range [][]int{EvenSlices, OddSlices} {
			seen := map[int]bool{}
			for _, number := range half {
				for _, i := range sample(number, n, []int{0, 1, 2, 3, 4, 5}) {
					seen[i] = true
				}
			}
			if len(seen) != 6 {
				t.Errorf("one in %d, slices %v: only %v", n, half, seen)
			}
		}
	}
}

// What rotates runs in its own slices and in all. A skipped test would be listed by every run.
func TestRotates(t *testing.T) {
	for value, want := range map[string]bool{"": true, "0": true, "4": true, "3": false, "9": false, "all": true} {
		number, every, err := parseSlice(value)
		if got := due(number, every, []int{0, 4}); err != nil || got != want {
			t.Errorf("slice %q: what is of 0 and 4 runs: %v, %v", value, got, err)
		}
	}
}
