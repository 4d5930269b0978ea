package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const fakeEnv = "TESTRUN_FAKE"

// TestMain makes this program a fake go test, whose output the tests define, or testrun itself, depending on how it is
// run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "account" {
		accountMain(os.Args[2:])
	}
	if done := os.Getenv(burnEnv); done != "" {
		os.Exit(burn(done))
	}
	if dir := os.Getenv(fakeEnv); dir != "" {
		os.Exit(fake(dir, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// fake prints the content of the next run's file, records its arguments, and exits with the code in the file's first
// line.
func fake(dir string, args []string) int {
	for run := 1; ; run++ {
		noted := filepath.Join(dir, fmt.Sprintf("%d.args", run))
		if _, err := os.Stat(noted); err == nil {
			continue
		}
		script, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(run)))
		if err != nil {
			fmt.Println("unexpected run:", err)
			return 99
		}
		_ = os.WriteFile(noted, []byte(strings.Join(args, " ")+" kube="+os.Getenv("KUBE")), 0o600)
		code, output, _ := strings.Cut(string(script), "\n")
		fmt.Print(output)
		var exit int
		_, _ = fmt.Sscan(code, &exit)
		return exit
	}
}

// goTest is one run of the fake: its exit code and events.
type goTest struct {
	code   int
	events []any // testjson.TestEvent, or a string that is printed as it is
}

const pkg = "example.com/m/p"

func testEvent(action, name, output string) any {
	return testjson.TestEvent{Action: testjson.Action(action), Package: pkg, Test: name, Output: output}
}

func pass(name string) []any {
	return []any{testEvent("run", name, ""), testEvent("output", name, "=== RUN   "+name+"\n"), testEvent("output", name, "    a_test.go:3: chatter\n"), testEvent("pass", name, "")}
}

func fail(name, said string) []any {
	return []any{testEvent("run", name, ""), testEvent("output", name, "    "+said+"\n"), testEvent("output", name, "--- FAIL: "+name+" (0.00s)\n"), testEvent("fail", name, "")}
}

// ended adds the package's own events around a package's tests.
func ended(action string, tests ...[]any) goTest {
	events := []any{testEvent("start", "", "")}
	for _, t := range tests {
		events = append(events, t...)
	}
	line, code := "ok  \t"+pkg+"\t0.1s\n", 0
	if action == "fail" {
		line, code = "FAIL\t"+pkg+"\t0.1s\n", 1
	}
	return goTest{code, append(events, testEvent("output", "", line), testEvent(action, "", ""))}
}

func TestSummaryAndVerdict(t *testing.T) {
	broken := ended("fail", pass("TestA"), fail("TestB", "b_test.go:3: broken"))
	alone := ended("pass", pass("TestB"))
	for _, tt := range []struct {
		name   string
		runs   []goTest
		ok     bool
		want   []string // printed in this order
		absent []string
		args   string // arguments of the last run
	}{
		{
			name:   "a passing package prints its line and nothing else",
			runs:   []goTest{ended("pass", pass("TestA"))},
			ok:     true,
			want:   []string{"ok  \texample.com/m/p\t0.1s\n", "packages  1 ok, 0 failed", "tests     1 passed, 0 failed", "NOT RUN   0", "flaky     0", "  p\n", "0 of 1 packages from the cache"},
			absent: []string{"chatter", "PASS", "=== RUN", "failed  "},
			args:   pkg,
		},
		{
			name: "a test that passes when it is run again is flaky",
			runs: []goTest{broken, alone},
			ok:   true,
			want: []string{"b_test.go:3: broken", "--- FAIL: TestB", "Running example.com/m/p TestB again, alone (1 of 2)", "flaky     1\n  example.com/m/p TestB: failed 1 of 2 times"},
			args: "-count=1 -run ^TestB$ " + pkg,
		},
		{
			name: "a flaky test may fail twice",
			runs: []goTest{broken, ended("fail", fail("TestB", "broken again")), alone},
			ok:   true,
			want: []string{"broken again", "TestB: failed 2 of 3 times"},
		},
		{
			name: "a test that fails three times is not flaky",
			runs: []goTest{broken, broken, broken},
			want: []string{"flaky     0", "failed    1\n  example.com/m/p TestB: failed 3 of 3 times"},
		},
		{
			name: "a second run without the test does not excuse the failure",
			runs: []goTest{broken, ended("pass"), ended("pass")},
			want: []string{"failed    1\n  example.com/m/p TestB"},
		},
		{
			name: "a second run that fails after the test passed does not excuse the failure",
			runs: []goTest{broken, {code: 3, events: alone.events}},
			want: []string{"failed    1\n  go test: exit status 3"},
		},
		{
			name: "a whole test is run again for its subtest",
			runs: []goTest{
				ended("fail", []any{testEvent("run", "TestB", "")}, fail("TestB/one", "one is broken"), []any{testEvent("fail", "TestB", "")}),
				alone,
			},
			ok:   true,
			want: []string{"one is broken", "flaky     1\n  example.com/m/p TestB:"},
			args: "-count=1 -run ^TestB$ " + pkg,
		},
		{
			name: "a package whose TestMain failed is run again completely",
			runs: []goTest{ended("fail", []any{testEvent("output", "", "FAIL: no control plane\n")}), ended("pass", pass("TestA"))},
			ok:   true,
			want: []string{"FAIL: no control plane", "flaky     1\n  example.com/m/p: failed 1 of 2 times"},
			args: "-count=1 " + pkg,
		},
		{
			name: "a data race is never excused",
			runs: []goTest{ended("fail", pass("TestA"), fail("TestB", "WARNING: DATA RACE"))},
			want: []string{"failed    1\n  example.com/m/p TestB: a data race"},
		},
		{
			name: "a data race in the output of a parallel test is never excused",
			runs: []goTest{ended("fail", []any{
				testEvent("run", "TestA", ""), testEvent("run", "TestB", ""),
				testEvent("output", "TestA", "==================\n"), testEvent("output", "TestA", "WARNING: DATA RACE\n"), testEvent("output", "TestA", "Write at 0x00c\n"),
				testEvent("output", "TestB", "    testing.go:1617: race detected during execution of test\n"),
				testEvent("pass", "TestA", ""), testEvent("fail", "TestB", ""),
			})},
			want: []string{"WARNING: DATA RACE\nWrite at 0x00c", "failed    1\n  example.com/m/p TestB: a data race"},
		},
		{
			name: "a data race of a program started by the test is never excused",
			runs: []goTest{ended("fail", pass("TestA"), fail("TestB", `lab.go:9: berthd of node-1 logged "WARNING: DATA RACE":`))},
			want: []string{"failed    1\n  example.com/m/p TestB: a data race"},
		},
		{
			name: "tests cut off by an exit are not excused by a test that passes",
			runs: []goTest{ended("fail", pass("TestA"), []any{testEvent("run", "TestB", ""), testEvent("output", "TestB", "exit\n")})},
			want: []string{"failed    1\n  example.com/m/p TestB: its program ended before its tests did"},
		},
		{
			name: "a package is not excused by a run that skips its tests",
			runs: []goTest{
				ended("fail", []any{testEvent("output", "", "FAIL: no control plane\n")}),
				ended("pass", []any{testEvent("run", "TestS", ""), testEvent("skip", "TestS", "")}),
				ended("pass", []any{testEvent("run", "TestS", ""), testEvent("skip", "TestS", "")}),
			},
			want: []string{"NOT RUN   2\n  example.com/m/p TestS: skipped", "failed    2\n  example.com/m/p: failed 3 of 3 times"},
		},
		{
			name: "a data race in a repeated run is never excused",
			runs: []goTest{broken, ended("fail", fail("TestB", "WARNING: DATA RACE"))},
			want: []string{"failed    1\n  example.com/m/p TestB: a data race"},
		},
		{
			name: "a panic fails the tests that it cut off and is never excused",
			runs: []goTest{ended("fail", pass("TestA"), []any{testEvent("run", "TestB", ""), testEvent("output", "TestB", "panic: boom\n")})},
			want: []string{"panic: boom", "failed    1\n  example.com/m/p TestB: a panic"},
		},
		{
			name: "more failures than may be flaky are not run again",
			runs: []goTest{ended("fail", pass("TestA"), fail("TestB", ""), fail("TestC", ""), fail("TestD", ""), fail("TestE", ""))},
			want: []string{"4 tests failed: more than 3 are not run again", "failed    4"},
		},
		{
			name: "skipped tests and parts that were not run are listed",
			runs: []goTest{ended("pass", pass("TestA"), []any{
				testEvent("run", "TestS", ""), testEvent("skip", "TestS", ""),
				testEvent("output", "TestT", "    a_test.go:9: NOT RUN: tunnels: this kernel has no fou module\n"), testEvent("pass", "TestT", ""),
				testEvent("output", "", "NOT RUN: the whole matrix\n"),
			})},
			ok: true,
			want: []string{
				"NOT RUN   3",
				"example.com/m/p TestS: skipped",
				"example.com/m/p TestT: tunnels: this kernel has no fou module",
				"example.com/m/p: the whole matrix",
			},
		},
		{
			name: "tests of other slices of the rotation are counted, not listed",
			runs: []goTest{ended("pass", pass("TestA"), []any{
				testEvent("run", "TestS", ""), testEvent("output", "TestS", "    a_test.go:9: OTHER SLICE: 3 of 10\n"), testEvent("skip", "TestS", ""),
				testEvent("run", "TestT", ""), testEvent("skip", "TestT", ""),
			})},
			ok:     true,
			want:   []string{"rotation  1 tests of other slices, which are run by make e2e\n", "NOT RUN   1\n  example.com/m/p TestT: skipped"},
			absent: []string{"TestS"},
		},
		{
			name: "a package that does not build prints the compiler's output and is not built again",
			runs: []goTest{{1, []any{
				testjson.TestEvent{Action: "build-output", ImportPath: pkg, Output: "p.go:1: undefined: x\n"},
				testjson.TestEvent{Action: "build-fail", ImportPath: pkg},
				testEvent("start", "", ""), testEvent("output", "", "FAIL\t"+pkg+" [build failed]\n"), testEvent("fail", "", ""),
			}}},
			want: []string{"p.go:1: undefined: x", "[build failed]", "packages  0 ok, 1 failed", "example.com/m/p: it does not build"},
		},
		{
			name: "go's own messages are printed, and a package that was not tested is a failure",
			runs: []goTest{{1, []any{"go: updates to go.mod needed\n"}}},
			want: []string{"go: updates to go.mod needed", "not tested to the end: example.com/m/p"},
		},
		{
			name: "a failure of go test without a failed package is a failure",
			runs: []goTest{{3, ended("pass", pass("TestA")).events}},
			want: []string{"go test: exit status 3"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := script(t, tt.runs)
			var out strings.Builder
			flaky := filepath.Join(dir, "flaky.txt")
			ok := whole(t, &out, flaky, []string{pkg}, later{})
			printed := out.String()
			if ok != tt.ok {
				t.Errorf("ok = %v, want %v", ok, tt.ok)
			}
			inOrder(t, printed, tt.want)
			for _, absent := range tt.absent {
				if strings.Contains(printed, absent) {
					t.Errorf("output contains %q:\n%s", absent, printed)
				}
			}
			last := read(t, filepath.Join(dir, fmt.Sprintf("%d.args", len(tt.runs))))
			if !strings.HasPrefix(last, tt.args) {
				t.Errorf("arguments of the last run = %q, want %q", last, tt.args)
			}
			if _, err := os.Stat(flaky); (err == nil) != strings.Contains(printed, "flaky     1") {
				t.Errorf("list of flaky tests: %v, want it to exist only with flaky tests", err)
			}
		})
	}
}

// script writes the files that define the runs of the fake.
func script(t *testing.T, runs []goTest) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv(fakeEnv, dir)
	for i, r := range runs {
		text := fmt.Sprintln(r.code)
		for _, e := range r.events {
			line, plain := e.(string)
			if !plain {
				data, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				line = string(data) + "\n"
			}
			text += line
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i+1)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// whole does the same as main.
func whole(t *testing.T, out *strings.Builder, flakyFile string, packages []string, l later) bool {
	t.Helper()
	report := newReport(out)
	report.module = "example.com/m"
	r := &runner{command: []string{os.Args[0]}, report: report}
	if err := r.all(t.Context(), []group{{packages: packages}}, l); err != nil {
		report.trouble = append(report.trouble, err.Error())
	}
	r.again(t.Context())
	if err := report.writeFlaky(flakyFile); err != nil {
		t.Error(err)
	}
	return report.print(83 * time.Second)
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func inOrder(t *testing.T, printed string, want []string) {
	t.Helper()
	rest := printed
	for _, w := range want {
		i := strings.Index(rest, w)
		if i < 0 {
			t.Fatalf("%q is missing (or out of order) in:\n%s", w, printed)
		}
		rest = rest[i+len(w):]
	}
}

func TestFlakyFileHasTestOutput(t *testing.T) {
	dir := script(t, []goTest{ended("fail", pass("TestA"), fail("TestB", "b_test.go:3: broken")), ended("pass", pass("TestB"))})
	path := filepath.Join(dir, "new", "flaky.txt")
	if !whole(t, new(strings.Builder), path, []string{pkg}, later{}) {
		t.Error("the run failed")
	}
	inOrder(t, read(t, path), []string{"example.com/m/p TestB: failed 1 of 2 times\n", "  |     b_test.go:3: broken\n"})

	script(t, []goTest{ended("pass", pass("TestA"))})
	if !whole(t, new(strings.Builder), path, []string{pkg}, later{}) {
		t.Error("the run failed")
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the list of an earlier run still exists: %v", err)
	}
}

// Packages wait for a program. If it exists already, all packages are tested together, with the waiting ones first, as
// they take longest. If it takes longer, the other packages are tested meanwhile.
func TestPackagesWaitForProgram(t *testing.T) {
	await := func(script string) string {
		path := filepath.Join(t.TempDir(), "await")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const kubePkg = "example.com/m/kube"
	other := goTest{0, []any{testjson.TestEvent{Action: "start", Package: kubePkg}, testjson.TestEvent{Action: "pass", Package: kubePkg}}}
	both := goTest{0, append(ended("pass", pass("TestA")).events, other.events...)}

	t.Run("at once", func(t *testing.T) {
		dir := script(t, []goTest{both})
		ok := whole(t, new(strings.Builder), "", []string{pkg}, later{atOnce: time.Minute, groups: []group{{packages: []string{kubePkg}}}, await: await("echo /kube"), env: "KUBE"})
		if got := read(t, filepath.Join(dir, "1.args")); !ok || got != kubePkg+" "+pkg+" kube=/kube" {
			t.Errorf("ok = %v, arguments = %q", ok, got)
		}
	})
	t.Run("meanwhile", func(t *testing.T) {
		t.Setenv("KUBE", "")
		dir := script(t, []goTest{ended("pass", pass("TestA")), other})
		wait := await("until [ -e " + dir + "/1.args ]; do sleep 0.1; done; echo /kube")
		ok := whole(t, new(strings.Builder), "", []string{pkg}, later{groups: []group{{packages: []string{kubePkg}}}, await: wait, env: "KUBE"})
		first, second := read(t, filepath.Join(dir, "1.args")), read(t, filepath.Join(dir, "2.args"))
		if !ok || first != pkg+" kube=" || second != kubePkg+" kube=/kube" {
			t.Errorf("ok = %v, arguments = %q, then %q", ok, first, second)
		}
	})
	t.Run("failed", func(t *testing.T) {
		script(t, nil)
		var out strings.Builder
		if whole(t, &out, "", []string{pkg}, later{atOnce: time.Minute, groups: []group{{packages: []string{kubePkg}}}, await: await("exit 4"), env: "KUBE"}) {
			t.Error("the run passed")
		}
		inOrder(t, out.String(), []string{"failed    2", "exit status 4"})
	})
}

// Groups of packages are separate commands with their own flags and variables, even when a test is run again.
func TestGroups(t *testing.T) {
	dir := script(t, []goTest{ended("fail", pass("TestA"), fail("TestB", "broken")), ended("pass", pass("TestB"))})
	report := newReport(new(strings.Builder))
	r := &runner{command: []string{os.Args[0]}, report: report}
	groups := []group{parseGroup("KUBE=/k -race -timeout 45m :: " + pkg), parseGroup("-race ::"), parseGroup("")}
	must(t, r.all(t.Context(), groups, later{}))
	r.again(t.Context())
	if !report.print(time.Second) {
		t.Error("the run failed")
	}
	first, second := read(t, filepath.Join(dir, "1.args")), read(t, filepath.Join(dir, "2.args"))
	if first != "-race -timeout 45m "+pkg+" kube=/k" || second != "-race -timeout 45m -count=1 -run ^TestB$ "+pkg+" kube=/k" {
		t.Errorf("arguments = %q, then %q", first, second)
	}
	if got := merge([]group{parseGroup("-race :: a"), parseGroup("b"), parseGroup("-race :: c d")}); fmt.Sprint(got) != "[{[] [-race] [a c d]} {[] [] [b]}]" {
		t.Errorf("merge() = %v", got)
	}
}

func TestProgressNamesRunningPackages(t *testing.T) {
	p := newProgress(new(strings.Builder))
	for _, name := range []string{"example.com/m/b", "example.com/m/a"} {
		p.count(testjson.TestEvent{Action: "start", Package: name})
	}
	if got, want := p.line(time.Now()), "0 packages and 0 tests done, running a, b"; got != want {
		t.Errorf("line() = %q, want %q", got, want)
	}
	p.running["example.com/m/a"] = p.started.Add(-time.Minute)
	if got, want := p.line(p.started.Add(15*time.Second)), "0 packages and 0 tests done, running a 75 s, b"; got != want {
		t.Errorf("line() = %q, want %q", got, want)
	}
}
