package migrate

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Complete replaces nil lists by empty ones, so that JSON has no null.
func (p Plan) Complete() Plan {
	p.Found, p.Pods, p.Steps, p.Obstacles = list(p.Found), list(p.Pods), list(p.Steps), list(p.Obstacles)
	return p
}

// Complete replaces nil lists by empty ones, so that JSON has no null.
func (r Report) Complete() Report {
	r.Pods, r.Changed, r.Problems = list(r.Pods), list(r.Changed), list(r.Problems)
	return r
}

func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// words are the fates as headings of the text.
var words = []struct {
	fate Fate
	text string
}{
	{Adopt, "pods that Berth adopts while they run"},
	{Adopted, "adopted pods"},
	{Berth, "pods that Berth created"},
	{Replace, "pods that must be replaced"},
	{Gone, "entries of pods that are gone"},
}

// Remark is the text after a step of a plan: " (done)", " (cannot be undone)" or nothing.
func (s Step) Remark() string {
	switch {
	case s.Done:
		return " (done)"
	case s.Final:
		return " (cannot be undone)"
	}
	return ""
}

// WriteText writes the plan as readable text.
func (p Plan) WriteText(w io.Writer) error {
	t := &text{w: w}
	t.printf("Migration from %s\n", p.From)
	for _, f := range p.Found {
		t.printf("  %s\n", f)
	}
	t.pods(p.Pods)
	if len(p.Steps) > 0 {
		t.printf("\nSteps\n")
	}
	for i, s := range p.Steps {
		t.printf("  %d. %s: %s%s\n", i+1, s.Name, s.What, s.Remark())
	}
	for _, o := range p.Obstacles {
		kind := "Warning"
		if o.Blocks {
			kind = "Obstacle"
		}
		t.printf("\n! %s: %s\n  %s\n", kind, o.What, o.Remedy)
	}
	return t.err
}

// WriteText writes the report as readable text.
func (r Report) WriteText(w io.Writer) error {
	t := &text{w: w}
	switch {
	case len(r.Changed) > 0:
		t.printf("%s: %d changes\n", r.Command, len(r.Changed))
	case r.Command != "verify":
		t.printf("%s: nothing to do\n", r.Command)
	case len(r.Problems) == 0:
		t.printf("verify: each address has one owner, and every pod answers\n")
	}
	for _, c := range r.Changed {
		t.printf("  %s\n", c)
	}
	for _, k := range r.Kept {
		t.printf("  kept %s\n", k)
	}
	t.pods(r.Pods)
	for _, p := range r.Problems {
		t.printf("\n! %s\n", p)
	}
	return t.err
}

// text collects the first error.
type text struct {
	w   io.Writer
	err error
}

func (t *text) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// pods lists pods by fate.
func (t *text) pods(pods []Pod) {
	for _, of := range words {
		n := Count(pods, of.fate)
		if n == 0 {
			continue
		}
		t.printf("\n%d %s\n", n, of.text)
		for _, p := range pods {
			if p.Fate != of.fate {
				continue
			}
			var addrs []string
			for _, a := range p.Addresses {
				addrs = append(addrs, a.String())
			}
			fields := []string{p.Namespace + "/" + p.Name, strings.Join(addrs, ","), p.Uplink, p.HostLink}
			for _, r := range p.Reached {
				fields = append(fields, "answers "+r.By)
			}
			t.printf("  %s\n", strings.Join(slices.DeleteFunc(fields, func(f string) bool { return f == "" || f == "/" }), "  "))
			if p.Why != "" {
				t.printf("    %s\n", p.Why)
			}
		}
	}
}
