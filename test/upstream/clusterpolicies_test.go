package main

import (
	"strings"
	"testing"
)

// The results of a suite count only if it ran to its end: a program that was killed has printed some of them.
func TestResultsOfASuiteThatEnded(t *testing.T) {
	const (
		one   = "=== RUN   TestConformance\n=== RUN   TestConformance/A\n=== RUN   TestConformance/A/b\n"
		bad   = "    --- FAIL: TestConformance/A (1.50s)\n        --- FAIL: TestConformance/A/b (1.00s)\n        --- PASS: TestConformance/A/c (0.50s)\n    --- PASS: TestConformance/D (2.00s)\n"
		good  = "    --- PASS: TestConformance/D (2.00s)\n"
		fails = "--- FAIL: TestConformance (3.50s)\n"
	)
	for what, tt := range map[string]struct {
		text   string
		exited bool
		want   string
		err    string
	}{
		"all passed":                  {text: one + "--- PASS: TestConformance (2.00s)\n" + good + "PASS\n", exited: true, want: "D passed"},
		"some failed":                 {text: one + fails + bad + "FAIL\n", want: "A/b failed, A/c passed, D passed"},
		"killed after a failure":      {text: one + bad[:strings.Index(bad, "        --- PASS")], err: "no last line"},
		"panicked after a failure":    {text: one + fails + bad, err: "no last line"},
		"nothing ran":                 {text: "--- PASS: TestConformance (0.00s)\nPASS\n", exited: true, err: "no test has a result"},
		"passed, and exits with 1":    {text: one + "--- PASS: TestConformance (2.00s)\n" + good + "PASS\n", err: "say otherwise"},
		"failed, and no test says so": {text: one + fails + good + "FAIL\n", err: "say otherwise"},
	} {
		all, err := readVerbose(strings.NewReader(tt.text), tt.exited)
		var got []string
		for _, r := range all {
			got = append(got, r.Name+" "+r.Outcome)
		}
		if text := strings.Join(got, ", "); text != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, error %v; want %q and an error containing %q", what, text, err, tt.want, tt.err)
		}
	}
}
