package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

// mark begins the lines of the guest's script that separate the outputs of test programs: mark begin
// DIR, and mark end EXIT-CODE.
const mark = "\x1d"

// script runs one test program of dir after the other, each in its package's folder.
func script(root, dir string, all []found) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "echo '%sbegin %s'\n", mark, p.dir)
		fmt.Fprintf(&b, "(cd '%s/%s' && exec '%s/%s' -test.v=test2json -test.short=%t -test.timeout=%s -test.run='^(%s)$') 2>&1\n", root, p.dir, dir, p.program(), sample() != "all", within, strings.Join(p.tests, "|"))
		fmt.Fprintf(&b, "code=$?; printf '\\n%send %%d\\n' $code\n", mark)
	}
	return b.String()
}

// outcome is the output of a test program.
type outcome struct {
	dir     string
	output  []byte
	ended   bool
	code    int
	results []*result
}

// result is what became of a test that is no subtest.
type result struct {
	name   string
	action string // of go tool test2json: pass, fail or skip; empty: it did not end
	took   float64
	output strings.Builder   // with that of its subtests
	said   map[string]string // each of these by its full name
	skips  []string          // full names of subtests that were skipped
}

// started begins the line of a test that starts.
const started = "\x16=== RUN   "

// split splits the output of the script by its marks; progress is called for each package, the n-th,
// and for each test.
func split(guest io.Reader, progress func(n int, what string, test bool)) (all []*outcome, err error) {
	var now *outcome
	r := bufio.NewReader(guest)
	for {
		line, err := r.ReadString('\n')
		words := strings.Fields(strings.TrimPrefix(line, mark))
		switch {
		case !strings.HasPrefix(line, mark):
			if now != nil {
				now.output = append(now.output, line...)
				if test, ok := strings.CutPrefix(strings.TrimSpace(line), started); ok && !strings.Contains(test, "/") {
					progress(len(all), now.dir+" "+test, true)
				}
			}
		case len(words) == 2 && words[0] == "begin":
			now = &outcome{dir: words[1]}
			all = append(all, now)
			progress(len(all), now.dir, false)
		case len(words) == 2 && words[0] == "end" && now != nil:
			now.ended = true
			if now.code, err = strconv.Atoi(words[1]); err != nil {
				return all, err
			}
			now = nil
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// read converts the output with go tool test2json, and sorts it by tests.
func (o *outcome) read(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t")
	cmd.Stdin = bytes.NewReader(o.output)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go tool test2json: %w", err)
	}
	events := json.NewDecoder(bytes.NewReader(out))
	for {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := events.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what go tool test2json says: %w", err)
		}
		name, _, sub := strings.Cut(e.Test, "/")
		if name == "" {
			continue
		}
		r := o.of(name)
		switch {
		case e.Action == "output":
			r.output.WriteString(e.Output)
			r.said[e.Test] += e.Output
		case sub && e.Action == "skip":
			r.skips = append(r.skips, e.Test)
		case !sub && slices.Contains([]string{"pass", "fail", "skip"}, e.Action):
			r.action, r.took = e.Action, e.Elapsed
		}
	}
}

func (o *outcome) of(name string) *result {
	for _, r := range o.results {
		if r.name == name {
			return r
		}
	}
	o.results = append(o.results, &result{name: name, said: map[string]string{}})
	return o.results[len(o.results)-1]
}

// Marks of lines of a test that passed, and of messages of one that was skipped.
const (
	notRun     = "NOT RUN:"     // the test lacked something
	otherSlice = "OTHER SLICE:" // harness.Rotate
)

// report makes subtests of the guest's tests, all of which must be there. It returns whether all
// passed that were not left to another slice.
func (o *outcome) report(t *testing.T, want []string) (complete bool) {
	failed, complete := false, true
	for _, name := range want {
		r := o.of(name)
		failed = failed || r.action != "pass" && r.action != "skip"
		skips := r.skips
		if r.action == "skip" {
			skips = append(slices.Clone(skips), name)
		}
		for _, s := range skips {
			complete = complete && strings.Contains(r.said[s], otherSlice)
		}
		complete = complete && !strings.Contains(r.output.String(), notRun)
		t.Run(name, func(t *testing.T) {
			switch r.action {
			case "pass":
				t.Logf("took %.2f s in the guest", r.took)
				for line := range strings.Lines(r.output.String()) {
					if strings.Contains(line, notRun) {
						t.Log(strings.TrimSpace(line))
					}
				}
				for _, s := range r.skips {
					t.Run(strings.TrimPrefix(s, name+"/"), func(t *testing.T) { t.Skip(why(r.said[s])) })
				}
			case "skip":
				t.Skip(why(r.output.String()))
			case "fail":
				t.Errorf("failed in the guest after %.2f s:\n%s", r.took, r.output.String())
			default:
				t.Errorf("did not end in the guest:\n%s", r.output.String())
			}
		})
	}
	switch {
	case !o.ended:
		t.Errorf("the test program did not end; its output:\n%s", o.output)
	case o.code != 0 && !failed:
		t.Errorf("the test program ended with %d, but no test failed; its output:\n%s", o.code, o.output)
	case o.code == 0 && failed:
		t.Errorf("the test program ended with 0, but not all tests passed; its output:\n%s", o.output)
	}
	return complete && !failed && o.ended && o.code == 0
}

// why is the reason for which a test was skipped.
func why(said string) string {
	for line := range strings.Lines(said) {
		if i := strings.Index(line, otherSlice); i >= 0 {
			return strings.TrimSpace(line[i:])
		}
	}
	return said
}

func TestOutputIsSplitByPackage(t *testing.T) {
	guest := "noise\n" + mark + "begin a/b\n" +
		"\x16=== RUN   TestOne\none says\n\x16--- PASS: TestOne (0.50s)\n\x16=== RUN   TestTwo\n\x16=== RUN   TestTwo/sub\n    x_test.go:1: bad\n" +
		"\x16--- FAIL: TestTwo (1.00s)\n    \x16--- FAIL: TestTwo/sub (1.00s)\n\x16=== RUN   TestThree\npanic: oh\n\n" + mark + "end 2\n" +
		mark + "begin c\nhalf"
	var told []string
	all, err := split(strings.NewReader(guest), func(n int, what string, test bool) { told = append(told, fmt.Sprint(n, " ", what, " ", test)) })
	if want := "1 a/b false; 1 a/b TestOne true; 1 a/b TestTwo true; 1 a/b TestThree true; 2 c false"; err != nil || len(all) != 2 || strings.Join(told, "; ") != want {
		t.Fatalf("got %v, %v, told of %q", all, err, told)
	}
	if o := all[1]; o.dir != "c" || o.ended || string(o.output) != "half" {
		t.Errorf("the second program is %+v", o)
	}
	o := all[0]
	if err := o.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !o.ended || o.code != 2 {
		t.Errorf("the first program is %+v", o)
	}
	for name, want := range map[string]struct{ action, output string }{
		"TestOne": {"pass", "one says"}, "TestTwo": {"fail", "x_test.go:1: bad"}, "TestThree": {"", "panic: oh"}, "TestFour": {},
	} {
		if r := o.of(name); r.action != want.action && !(name == "TestThree" && r.action == "fail") || !strings.Contains(r.output.String(), want.output) {
			t.Errorf("%s: %q, output %q; want %q", name, r.action, r.output.String(), want)
		}
	}
}

// TestOutcomesOfPackages checks which packages count as passed.
func TestOutcomesOfPackages(t *testing.T) {
	const (
		one  = "\x16=== RUN   TestOne\n"
		part = one + "\x16=== RUN   TestOne/x\n"
		name = "\x16=== NAME  TestOne\n"
	)
	for what, c := range map[string]struct {
		output   string
		complete bool
	}{
		"passed":                  {one + "\x16--- PASS: TestOne (0.50s)\n", true},
		"in another slice":        {one + "    sample.go:1: OTHER SLICE: 3\n\x16--- SKIP: TestOne (0.00s)\n", true},
		"a part in another slice": {part + "    sample.go:1: OTHER SLICE: 3\n\x16--- SKIP: TestOne/x (0.00s)\n" + name + "\x16--- PASS: TestOne (0.50s)\n", true},
		"skipped":                 {one + "    x_test.go:1: no program\n\x16--- SKIP: TestOne (0.00s)\n", false},
		"a part skipped":          {part + "    x_test.go:1: no program\n\x16--- SKIP: TestOne/x (0.00s)\n" + name + "\x16--- PASS: TestOne (0.50s)\n", false},
		"a part not run":          {part + "    x_test.go:1: NOT RUN: IPv6\n\x16--- PASS: TestOne/x (0.00s)\n" + name + "\x16--- PASS: TestOne (0.50s)\n", false},
	} {
		t.Run(what, func(t *testing.T) {
			o := &outcome{dir: "a", output: []byte(c.output + "\x16=== NAME  \n\x16PASS\n"), ended: true}
			harness.OK(t, o.read(t.Context()))
			if got := o.report(t, []string{"TestOne"}); got != c.complete {
				t.Errorf("complete: %t, want %t", got, c.complete)
			}
		})
	}
}
