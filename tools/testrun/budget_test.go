package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/gotestsum/testjson"
)

func TestBudget(t *testing.T) {
	for _, tt := range []struct {
		name   string
		total  float64
		slow   float64            // what each of eight further packages uses, in multiples of its row of 1
		used   map[string]float64 // by package below the module's root; negative: from Go's cache
		want   []string           // prefixes of the verdicts
		inside []string           // contained in the last verdict, in this order
	}{
		{"exactly twice the row", 1000, 0, map[string]float64{"test/crash": 180}, nil, nil},
		{
			"above twice the row", 1000, 0, map[string]float64{"test/crash": 180.1, "other": 1},
			[]string{"test/crash used 180.1 CPU-s: its row in budget.tsv has 90, and the limit is 180. Fix the test, or raise its row in budget.tsv in the same commit."},
			[]string{"\n        9.0 s  TestTable/slow", "\n        8.0 s  TestC", "\n        7.0 s  TestD", "\n        6.0 s  TestE", "\n        1.0 s  TestF"},
		},
		{"without a row", 1000, 0, map[string]float64{"other": 50}, nil, nil},
		{"above the limit without a row", 1000, 0, map[string]float64{"other": 51}, []string{"other used 51.0 CPU-s: a package without a row in budget.tsv has 25, and the limit is 50."}, nil},
		{"at the limit of a slow machine", 250, 1.6, map[string]float64{"test/crash": 288, "other": 80, "apart": 96}, nil, nil},
		{"above the limit of a slow machine", 300, 1.6, map[string]float64{"test/crash": 289}, []string{"test/crash used 289.0 CPU-s: its row in budget.tsv has 90, and the limit is 288."}, nil},
		{"a machine that explains no more", 1000, 4.5, map[string]float64{"test/crash": 451}, []string{"test/crash used 451.0 CPU-s: its row in budget.tsv has 90, and the limit is 450."}, nil},
		{"a fast machine", 1000, 0.5, map[string]float64{"test/crash": 180}, nil, nil},
		{"from the cache", 1000, 0, map[string]float64{"test/crash": -1}, nil, nil},
		{"without usage", 1000, 0, map[string]float64{"other": 0}, []string{"other: its CPU time is unknown"}, nil},
		{"sum equal to the total", 101, 0, map[string]float64{"test/crash": 100, "other": 1}, nil, nil},
		{"sum equal to the total without packages that do not count", 100, 0, map[string]float64{"apart": 40, "test/crash": 100}, nil, nil},
		{
			"sum above the total", 100, 0, map[string]float64{"test/crash": 99.5, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5},
			[]string{`all packages used 114.5 CPU-s, and the row "total" in budget.tsv has 100, in this run 100.`},
			[]string{"\n    test/crash, 99.5 CPU-s:\n          9.0 s  TestTable/slow", "\n    e, 5.0 CPU-s:", "\n    d, 4.0", "\n    c, 3.0", "\n    b, 2.0"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReport(new(strings.Builder))
			r.module = "example.com/m"
			r.budget = &budget{file: "budget.tsv", total: tt.total, rows: map[string]float64{"test/crash": 90, "apart": 30}, apart: map[string]bool{"apart": true}}
			for i := range 8 {
				if name := fmt.Sprint("z", i); tt.slow > 0 {
					r.budget.rows[name], r.budget.apart[name] = 1, true
					r.accounts.used[r.module+"/"+name] = used{usage: usage{CPU: tt.slow}}
					r.results[r.module+"/"+name] = result{passed: true}
				}
			}
			for name, cpu := range tt.used {
				name = r.module + "/" + name
				if cpu > 0 {
					r.accounts.used[name] = used{usage: usage{Package: name, CPU: cpu}}
				}
				r.results[name] = result{passed: true, cached: cpu < 0, tests: []testjson.TestCase{
					took("TestTable", 30), took("TestTable/slow", 9), took("TestTable/fast", 0), took("TestC", 8), took("TestD", 7), took("TestE", 6), took("TestF", 1),
				}}
			}
			got := r.budget.verdicts(r)
			if len(got) != len(tt.want) {
				t.Fatalf("verdicts = %q, want %d", got, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("verdict = %q, want prefix %q", got[i], want)
				}
				inOrder(t, got[i], tt.inside)
				if strings.Contains(got[i], "TestTable\n") || strings.Contains(got[i], "fast") || strings.Contains(got[i], " a, ") {
					t.Errorf("verdict contains more than the five most expensive tests, or a test with subtests: %s", got[i])
				}
			}
		})
	}
}

func took(name string, seconds int) testjson.TestCase {
	return testjson.TestCase{Test: testjson.TestName(name), Elapsed: time.Duration(seconds) * time.Second}
}

func TestReadBudget(t *testing.T) {
	const header = "# CPU seconds by package.\npackage\tcpu-seconds\n"
	const start = header + "total\t100\n"
	root := t.TempDir()
	for _, name := range []string{"a", "b", "empty"} {
		must(t, os.Mkdir(filepath.Join(root, name), 0o700))
		if name != "empty" {
			must(t, os.WriteFile(filepath.Join(root, name, name+"_test.go"), nil, 0o600))
		}
	}
	file := filepath.Join(root, "budget.tsv")
	for _, tt := range []struct {
		name, text string
		want       []string // parts of the error
	}{
		{"rows", start + "a\t3\n\n# of b\nb\t+4.5\n", nil},
		{"no header", "total\t100\na\t3\n", []string{`:1: "total\t100": expected the header "package\tcpu-seconds"`, `:2: "a\t3": expected the first row to be "total"`}},
		{"nothing", "", []string{`expected a first row "total"`}},
		{"no total", header + "a\t3\n", []string{`:3: "a\t3": expected the first row to be "total"`}},
		{"no number", start + "a\tmuch\nb 4\n", []string{`:4: "a\tmuch": expected a package, a tab and its CPU seconds, a number above 0`, `:5: "b 4": expected a package, a tab`}},
		{"zero, negative and not a number", start + "a\t0\na\t-1\na\tNaN\n", []string{":4: ", ":5: ", ":6: "}},
		{"a third column", start + "a\t3\t4\n", []string{":4: "}},
		{"out of order", start + "b\t3\na\t4\n", []string{`:5: "a\t4": expected rows sorted by package, without duplicates; "b" is before it`}},
		{"twice", start + "a\t3\na\t4\n", []string{`:5: "a\t4": expected rows sorted`}},
		{"no such package", start + "a/gone\t3\n", []string{`:4: "a/gone\t3": expected a package with tests, below the root of the module; a/gone has no *_test.go`}},
		{"no tests", start + "empty\t3\n", []string{":4: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, os.WriteFile(file, []byte(tt.text), 0o600))
			b, err := readBudget(file, root)
			if len(tt.want) == 0 {
				must(t, err)
				if b.total != 100 || fmt.Sprint(b.rows, b.apart) != "map[a:3 b:4.5] map[a:false b:true]" {
					t.Errorf("budget = %+v", b)
				}
				return
			}
			if err == nil {
				t.Fatal("readBudget() succeeded, want an error")
			}
			inOrder(t, err.Error(), tt.want)
		})
	}
	if _, err := readBudget(filepath.Join(root, "none"), root); err == nil {
		t.Error("readBudget() of a missing file succeeded, want an error")
	}
}
