package harness

import (
	"slices"
	"testing"
)

func TestSample(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6}
	for _, tc := range []struct {
		asked string
		n     int
		all   []int
		want  []int
	}{
		{asked: "all", n: 3, all: all, want: all},
		{n: 3, all: all, want: []int{0, 3, 6}},
		{asked: "0", n: 3, all: all, want: []int{0, 3, 6}},
		{asked: "1", n: 3, all: all, want: []int{1, 4}},
		{asked: "5", n: 3, all: all, want: []int{2, 5}},
		{asked: "1", n: 1, all: all, want: all},
		{asked: "1", n: 10, all: all, want: []int{1}},
		{asked: "8", n: 10, all: all, want: []int{1}},
		{n: 3},
	} {
		if got, err := sample(tc.asked, tc.n, tc.all); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("sample %q, one in %d of %v: %v, %v, want %v", tc.asked, tc.n, tc.all, got, err, tc.want)
		}
	}
	for _, asked := range []string{"some", "-1", "1.5"} {
		if got, err := sample(asked, 3, all); err == nil {
			t.Errorf("sample %q is %v", asked, got)
		}
	}
}

// All samples together have all cases, each once.
func TestSamplesAreDisjoint(t *testing.T) {
	for _, n := range []int{1, 2, 4, 7, 9} {
		var seen []int
		for _, asked := range []string{"0", "1", "2", "3", "4", "5", "6"}[:min(n, 7)] {
			part, err := sample(asked, n, []int{0, 1, 2, 3, 4, 5, 6})
			if err != nil || len(part) == 0 {
				t.Fatalf("sample %s, one in %d: %v, %v", asked, n, part, err)
			}
			seen = append(seen, part...)
		}
		slices.Sort(seen)
		if !slices.Equal(seen, []int{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("one in %d: %v", n, seen)
		}
	}
}

func TestRotate(t *testing.T) {
	for asked, want := range map[string]int{"": 0, "0": 0, "7": 7, "10": 0, "127": 7} {
		for slice := range rotation {
			if mine, err := inSlice(asked, slice); err != nil || mine != (slice == want) {
				t.Errorf("%q, slice %d: %t, %v, want slice %d alone", asked, slice, mine, err, want)
			}
		}
	}
	if mine, err := inSlice("all", 3); err != nil || !mine {
		t.Errorf("all: %t, %v", mine, err)
	}
	if _, err := inSlice("some", 3); err == nil {
		t.Error("some is a number")
	}
}
