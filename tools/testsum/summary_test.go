package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// run feeds events, as JSON, and plain lines to a summary.
func run(t *testing.T, input ...any) (s *summary, printed string) {
	t.Helper()
	var out strings.Builder
	s = newSummary(&out)
	for _, in := range input {
		line, plain := in.(string)
		if !plain {
			encoded, err := json.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			line = string(encoded)
		}
		s.add([]byte(line + "\n"))
	}
	s.print(83 * time.Second)
	return s, out.String()
}

func TestSummary(t *testing.T) {
	const pkg = "example.com/m/p"
	start := event{Action: "start", Package: pkg}
	test := func(action, name, output string) event {
		return event{Action: action, Package: pkg, Test: name, Output: output}
	}
	whole := func(action, output string) event {
		return event{Action: action, Package: pkg, Output: output}
	}
	for _, tt := range []struct {
		name   string
		input  []any
		ok     bool
		want   []string // in this order
		absent []string
	}{
		{
			name: "a passing package prints its line and nothing else",
			input: []any{
				start,
				test("output", "TestA", "=== RUN   TestA\n"), test("output", "TestA", "    a_test.go:3: chatter\n"), test("pass", "TestA", ""),
				whole("output", "PASS\n"), whole("output", "ok  \texample.com/m/p\t0.1s\n"), whole("pass", ""),
			},
			ok:     true,
			want:   []string{"ok  \texample.com/m/p\t0.1s\n", "packages  1 ok, 0 failed", "tests     1 passed, 0 failed", "NOT RUN   0", "time      1m23s"},
			absent: []string{"chatter", "PASS", "=== RUN", "failed:"},
		},
		{
			name: "a failing test prints what it said and is named at the end",
			input: []any{
				start,
				test("output", "TestA", "=== RUN   TestA\n"), test("output", "TestA", "    a_test.go:3: broken\n"), test("output", "TestA", "--- FAIL: TestA (0.00s)\n"), test("fail", "TestA", ""),
				whole("output", "FAIL\n"), whole("output", "FAIL\texample.com/m/p\t0.1s\n"), whole("fail", ""),
			},
			want:   []string{"a_test.go:3: broken", "--- FAIL: TestA", "FAIL\texample.com/m/p", "packages  0 ok, 1 failed", "failed:\n  example.com/m/p TestA\n"},
			absent: []string{"=== RUN"},
		},
		{
			name: "a panic prints the output of the test that it cut off",
			input: []any{
				start,
				test("output", "TestA", "panic: boom\n"), whole("output", "FAIL\texample.com/m/p\t0.1s\n"), whole("fail", ""),
			},
			want: []string{"panic: boom", "failed:\n  example.com/m/p\n"},
		},
		{
			name: "skipped tests and parts that were not run are listed",
			input: []any{
				start,
				test("skip", "TestS", ""),
				test("output", "TestA", "    a_test.go:9: NOT RUN: tunnels: this kernel has no fou module\n"), test("pass", "TestA", ""),
				whole("output", "NOT RUN: the whole matrix\n"), whole("pass", ""),
			},
			ok: true,
			want: []string{
				"NOT RUN   3",
				"example.com/m/p TestS: skipped",
				"example.com/m/p TestA: tunnels: this kernel has no fou module",
				"example.com/m/p: the whole matrix",
			},
		},
		{
			name: "a build failure prints the compiler's words",
			input: []any{
				event{Action: "build-output", ImportPath: pkg, Output: "p.go:1: undefined: x\n"},
				event{Action: "build-fail", ImportPath: pkg},
				start, whole("output", "FAIL\texample.com/m/p [build failed]\n"), whole("fail", ""),
			},
			want: []string{"p.go:1: undefined: x", "[build failed]", "packages  0 ok, 1 failed"},
		},
		{
			name:  "go's own complaint is passed on, and nothing tested is no success",
			input: []any{`go: warning: "./x/..." matched no packages`},
			want:  []string{"matched no packages", "packages  0 ok"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, printed := run(t, tt.input...)
			if s.ok() != tt.ok {
				t.Errorf("ok() = %v, want %v", s.ok(), tt.ok)
			}
			rest := printed
			for _, want := range tt.want {
				i := strings.Index(rest, want)
				if i < 0 {
					t.Fatalf("%q is missing (or out of order) in:\n%s", want, printed)
				}
				rest = rest[i+len(want):]
			}
			for _, absent := range tt.absent {
				if strings.Contains(printed, absent) {
					t.Errorf("%q should not be in:\n%s", absent, printed)
				}
			}
		})
	}
}

func TestProgressNamesWhatRuns(t *testing.T) {
	s := newSummary(new(strings.Builder))
	for _, pkg := range []string{"example.com/m/b", "example.com/m/a"} {
		s.add([]byte(`{"Action":"start","Package":"` + pkg + `"}`))
	}
	if got, want := s.progress(), "0 packages and 0 tests done, running a, b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadLines(t *testing.T) {
	lines, errs := readLines(strings.NewReader("a\nb"))
	var got []string
	for line := range lines {
		got = append(got, string(line))
	}
	if err := <-errs; err != nil || strings.Join(got, "|") != "a\n|b" {
		t.Errorf("got %q, %v", got, err)
	}
}
