package harness

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
)

func TestSampleTakesEveryNthCase(t *testing.T) {
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

// TestSlicesHaveAll checks that all slices together have all cases, also of a sample within a sample
// whose numbers have no common divisor.
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

// TestHalfOfSlices checks that five even or odd slices have all cases of a sample of one in three or
// five.
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

// TestRotatingTestsRunInTheirSlices checks that a rotating test runs in its own slices and with all.
func TestRotatingTestsRunInTheirSlices(t *testing.T) {
	for value, want := range map[string]bool{"": true, "0": true, "4": true, "3": false, "9": false, "all": true} {
		number, every, err := parseSlice(value)
		if got := due(number, every, []int{0, 4}); err != nil || got != want {
			t.Errorf("slice %q: what is of 0 and 4 runs: %v, %v", value, got, err)
		}
	}
}

// TestFamiliesOfLabs checks that labs of nodes with ENIs have the families of the variable, unless
// they choose their own.
func TestFamiliesOfLabs(t *testing.T) {
	for asked, want := range map[string]ipfamily.Set{"": ipfamily.OnlyIPv4, "ipv4": ipfamily.OnlyIPv4, "dual": ipfamily.Dual, "ipv6": ipfamily.OnlyIPv6} {
		t.Run(asked, func(t *testing.T) {
			t.Setenv(FamiliesVar, asked)
			for _, m := range []lab.Mode{lab.NodeMode, lab.OperatorMode} {
				if got := Quick(m, lab.Options{}).IPFamilies; got != want {
					t.Errorf("%s mode: %q, want %q", m, got, want)
				}
				if got := Quick(m, lab.Options{IPFamilies: ipfamily.OnlyIPv4}).IPFamilies; got != ipfamily.OnlyIPv4 {
					t.Errorf("%s mode: %q, though the lab says ipv4", m, got)
				}
			}
			for _, m := range []lab.Mode{lab.PoolMode, lab.PortMode} {
				if got := Quick(m, lab.Options{}).IPFamilies; got != "" {
					t.Errorf("%s mode: %q, want none", m, got)
				}
			}
		})
	}
	if _, err := families("both"); err == nil || err.Error() != `BERTH_IP_FAMILIES: "both": expected ipv4, ipv6 or dual` {
		t.Errorf("a wrong value: %v", err)
	}
}

func TestLabsAtOnceAreLimited(t *testing.T) {
	dir := t.TempDir()
	for range labsAtOnce - 1 {
		f, err := freeSlot(dir)
		OK(t, err)
		t.Cleanup(func() { _ = f.Close() })
	}
	last, err := freeSlot(dir)
	OK(t, err)
	if f, err := freeSlot(dir); !errors.Is(err, errNoSlot) {
		t.Fatalf("one lab too many: got %v, %v", f, err)
	}
	OK(t, last.Close())
	again, err := freeSlot(dir)
	OK(t, err)
	OK(t, again.Close())
}

// TestSlotsOfSubtests checks that a subtest shares its parent's slot: with one of its own it could
// wait forever.
func TestSlotsOfSubtests(t *testing.T) {
	former := BinDir
	BinDir = t.TempDir()
	t.Cleanup(func() { BinDir = former })
	taken := func() (n int) {
		for {
			f, err := freeSlot(BinDir)
			if err != nil {
				return labsAtOnce - n
			}
			defer f.Close()
			n++
		}
	}
	t.Run("parent", func(t *testing.T) {
		Slot(t)
		t.Run("child", func(t *testing.T) {
			Slot(t)
			if got := taken(); got != 1 {
				t.Errorf("parent and child hold %d slots, want 1", got)
			}
		})
	})
	if got := taken(); got != 0 {
		t.Errorf("%d slots are held after the tests, want none", got)
	}
}

// ofLibrary is a report of the race in the library's WaitGroup.
const ofLibrary = `WARNING: DATA RACE
Write at 0x00c00008c038 by goroutine 14:
  runtime.racewrite()
      <autogenerated>:1 +0x1e
  github.com/ovn-kubernetes/libovsdb/client.(*ovsdbClient).connect.gowrap2()
      github.com/ovn-kubernetes/libovsdb@v0.8.1/client/client.go:303 +0x2e

Previous read at 0x00c00008c038 by goroutine 11:
  runtime.raceread()
      <autogenerated>:1 +0x1e
  github.com/ovn-kubernetes/libovsdb/client.(*ovsdbClient).Connect()
      github.com/ovn-kubernetes/libovsdb@v0.8.1/client/client.go:201 +0x44
  github.com/berthnet/berth/internal/kernel/plug/ovsdb.(*Client).dial()
      github.com/berthnet/berth/internal/kernel/plug/ovsdb/client.go:144 +0x2a5

Goroutine 14 (running) created at:
  github.com/ovn-kubernetes/libovsdb/client.(*ovsdbClient).connect()
      github.com/ovn-kubernetes/libovsdb@v0.8.1/client/client.go:303 +0x13bc`

// ofBerth is a report in which the library only calls.
const ofBerth = `WARNING: DATA RACE
Read at 0x00c000514098 by goroutine 27:
  github.com/berthnet/berth/internal/kernel/plug/ovsdb.(*Client).rowChanged()
      github.com/berthnet/berth/internal/kernel/plug/ovsdb/watch.go:61 +0x1a4
  github.com/ovn-kubernetes/libovsdb/cache.(*eventProcessor).Run()
      github.com/ovn-kubernetes/libovsdb@v0.8.1/cache/cache.go:1297 +0x2f1

Previous write at 0x00c000514098 by goroutine 19:
  github.com/berthnet/berth/internal/kernel/plug/ovsdb.(*Client).Watch()
      github.com/berthnet/berth/internal/kernel/plug/ovsdb/watch.go:33 +0x10c`

func TestRaces(t *testing.T) {
	framed := func(reports ...string) string {
		log := "time=2026-01-01T00:00:00Z level=INFO msg=started\n"
		for _, r := range reports {
			log += "==================\n" + r + "\n==================\ntime=2026-01-01T00:00:01Z level=INFO msg=more\n"
		}
		return log
	}
	begun, _, _ := strings.Cut(ofLibrary, "\n\nPrevious")
	for name, tc := range map[string]struct {
		log       string
		ofLibrary []bool // of each report
	}{
		"no report":                {framed(), nil},
		"the library's":            {framed(ofLibrary), []bool{true}},
		"Berth's":                  {framed(ofBerth), []bool{false}},
		"both":                     {framed(ofLibrary, ofBerth, ofLibrary), []bool{true, false, true}},
		"one that is cut off":      {"==================\n" + begun, []bool{false}},
		"memory of the library":    {framed(strings.ReplaceAll(ofLibrary, "  runtime.raceread()\n      <autogenerated>:1 +0x1e\n", "")), []bool{false}},
		"another's group":          {framed(strings.Replace(ofLibrary, "ovn-kubernetes/libovsdb/client.(*ovsdbClient).Connect", "berthnet/berth/internal/node/daemon.(*Daemon).Run", 1)), []bool{false}},
		"the library's and a half": {framed(ofLibrary) + "==================\n" + begun, []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			got := races(tc.log)
			if len(got) != len(tc.ofLibrary) {
				t.Fatalf("reports: %q, want %d", got, len(tc.ofLibrary))
			}
			for i, want := range tc.ofLibrary {
				if ofOVSDBLibrary(got[i]) != want {
					t.Errorf("is it only of the library: %v, want %v:\n%s", !want, want, got[i])
				}
			}
		})
	}
}
