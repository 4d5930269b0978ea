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
)

// mark begins the lines of the guest's script by which the outputs of test programs are
// told apart: mark begin DIR, and mark end EXIT-CODE. It is no part of any text.
const mark = "\x1d"

// script is what the guest runs: one test program after the other, in the folders that
// their packages have. The program of the package n is n.test in dir.
func script(root, dir string, all []found) string {
	var b strings.Builder
	for i, p := range all {
		fmt.Fprintf(&b, "echo '%sbegin %s'\n", mark, p.dir)
		fmt.Fprintf(&b, "(cd '%s/%s' && exec '%s/%d.test' -test.v=test2json -test.short -test.timeout=%s -test.run='^(%s)$') 2>&1\n", root, p.dir, dir, i, within, strings.Join(p.tests, "|"))
		fmt.Fprintf(&b, "code=$?; printf '\\n%send %%d\\n' $code\n", mark)
	}
	return b.String()
}

// outcome is what a test program said.
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
	output strings.Builder // with that of its subtests
}

// started begins a line about a test that is begun, in the output of a test program.
const started = "\x16=== RUN   "

// split splits the output of the script by its marks; progress is told of each package, and with long
// of each test.
func split(guest io.Reader, progress func(string)) (all []*outcome, err error) {
	var now *outcome
	r := bufio.NewReader(guest)
	for {
		line, err := r.ReadString('\n')
		words := strings.Fields(strings.TrimPrefix(line, mark))
		switch {
		case !strings.HasPrefix(line, mark):
			if now != nil {
				now.output = append(now.output, line...)
				if test, ok := strings.CutPrefix(strings.TrimSpace(line), started); ok && long && !strings.Contains(test, "/") {
					progress(now.dir + " " + test)
				}
			}
		case len(words) == 2 && words[0] == "begin":
			now = &outcome{dir: words[1]}
			all = append(all, now)
			progress(now.dir)
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

// read has go read what the program printed, and sorts it by tests.
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
	o.results = append(o.results, &result{name: name})
	return o.results[len(o.results)-1]
}

// report makes subtests of what the guest's tests came to, of which there are to be those
// that were wanted.
func (o *outcome) report(t *testing.T, want []string) {
	failed := false
	for _, name := range want {
		r := o.of(name)
		failed = failed || r.action != "pass" && r.action != "skip"
		t.Run(name, func(t *testing.T) {
			switch r.action {
			case "pass":
				t.Logf("took %.2f s in the guest", r.took)
				for line := range strings.Lines(r.output.String()) {
					if strings.Contains(line, "NOT RUN:") {
						t.Log(strings.TrimSpace(line))
					}
				}
			case "skip":
				t.Skip(r.output.String())
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
}

func TestSplit(t *testing.T) {
	guest := "noise\n" + mark + "begin a/b\n" +
		"\x16=== RUN   TestOne\none says\n\x16--- PASS: TestOne (0.50s)\n\x16=== RUN   TestTwo\n\x16=== RUN   TestTwo/sub\n    x_test.go:1: bad\n" +
		"\x16--- FAIL: TestTwo (1.00s)\n    \x16--- FAIL: TestTwo/sub (1.00s)\n\x16=== RUN   TestThree\npanic: oh\n\n" + mark + "end 2\n" +
		mark + "begin c\nhalf"
	var told []string
	all, err := split(strings.NewReader(guest), func(dir string) { told = append(told, dir) })
	tests := func(s string) bool { return strings.Contains(s, " ") }
	if err != nil || len(all) != 2 || fmt.Sprint(slices.DeleteFunc(slices.Clone(told), tests)) != "[a/b c]" || slices.ContainsFunc(told, tests) != long {
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
