package kubectl

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// output is the value of the flag -o.
type output string

const (
	asTable output = "table"
	asWide  output = "wide"
	asJSON  output = "json"
	asYAML  output = "yaml"
)

var outputs = []string{string(asTable), string(asWide), string(asJSON), string(asYAML)}

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return strings.Join(outputs, "|") }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	if !slices.Contains(outputs, s) {
		return fmt.Errorf("expected one of %s", strings.Join(outputs, ", "))
	}
	*o = output(s)
	return nil
}

func (o *output) register(cmd *cobra.Command) {
	*o = asTable
	cmd.Flags().VarP(o, "output", "o", "output format")
	_ = cmd.RegisterFlagCompletionFunc("output", func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return starting(slices.Clone(outputs), typed)
	})
}

// show prints a value in the chosen format. table prints tables.
func (o output) show(cmd *cobra.Command, v any, table func(p *view.Printer, wide bool)) error {
	w := cmd.OutOrStdout()
	switch o {
	case asJSON:
		return view.WriteJSON(w, v)
	case asYAML:
		return view.WriteYAML(w, v)
	default:
		p := &view.Printer{W: w, Colours: colours(w)}
		table(p, o == asWide)
		return p.Err
	}
}

// finish is show for a value that may have a problem, which the exit code reports.
func (o output) finish(cmd *cobra.Command, v any, unwell bool, table func(p *view.Printer, wide bool)) error {
	if err := o.show(cmd, v, table); err != nil || !unwell {
		return err
	}
	return errUnwell
}

// colours reports whether a writer is a terminal that supports colours
// (https://no-color.org: any value of NO_COLOR disables them).
func colours(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress returns functions that print and clear the number of nodes that have responded.
// Without a terminal on standard error they do nothing.
func (p *program) progress(cmd *cobra.Command, all int) (done func(n int), end func()) {
	w := cmd.ErrOrStderr()
	if p.quiet || all < 2 || !isTerminal(w) {
		return func(int) {}, func() {}
	}
	return func(n int) { fmt.Fprintf(w, "\r%d of %d nodes asked", n, all) },
		func() { fmt.Fprint(w, "\r\x1b[K") }
}

// problem prints a problem of something.
func problem(p *view.Printer, of, text string) {
	p.Printf("\n%s %s\n", view.Toned{Text: "! " + of + ":", Tone: view.Bad}, text)
}

// notRead prints what could not be read.
func notRead(p *view.Printer, list []string) {
	for _, why := range list {
		p.Printf("\n%s %s\n", view.Toned{Text: "! could not be read:", Tone: view.Warn}, why)
	}
}

// stateOf returns a condition's status for a table, with the reason if it is not true.
func stateOf(status, reason string) string {
	if reason == "" || status == string(metav1.ConditionTrue) {
		return yesNo(status)
	}
	return yesNo(status) + " (" + reason + ")"
}

// yesNo returns a condition's status for a table.
func yesNo(status string) string {
	switch status {
	case "True":
		return "yes"
	case "False":
		return "no"
	case "":
		return "no Node"
	default:
		return "unknown"
	}
}

// toneOf returns the colour of a state that is good or bad.
func toneOf(good bool) view.Tone {
	if good {
		return view.Good
	}
	return view.Bad
}

// judged is a row with a diagnosis.
type judged interface {
	id() string // namespace and name
	diagnosis() diagnose.Diagnosis
}

// explain prints summary and remedy of the rows that need attention.
func explain[T judged](p *view.Printer, rows []T) {
	for _, r := range unwell(rows) {
		problem(p, r.id(), r.diagnosis().Summary)
		if remedy := r.diagnosis().Remedy; remedy != "" {
			p.Printf("  What to do: %s\n", remedy)
		}
	}
}

// unwell returns the rows that need attention.
func unwell[T judged](rows []T) []T {
	return slices.DeleteFunc(slices.Clone(rows), func(r T) bool { return r.diagnosis().OK })
}

// summary returns a line for each verdict of the rows that need attention. things is the
// noun for the rows.
func summary[T judged](rows []T, things string) (lines []string) {
	by := map[diagnose.Verdict][]T{}
	for _, r := range unwell(rows) {
		by[r.diagnosis().Verdict] = append(by[r.diagnosis().Verdict], r)
	}
	for verdict, list := range by {
		text := fmt.Sprintf("%s: %s: %s", verdict, list[0].id(), list[0].diagnosis().Summary)
		if len(list) > 1 {
			text = fmt.Sprintf("%s of %d %s, such as %s: %s", verdict, len(list), things, list[0].id(), list[0].diagnosis().Summary)
		}
		lines = append(lines, text)
	}
	slices.Sort(lines)
	return lines
}

// few returns the rows to list, all or at most listed, and how many it omits.
func few[T any](rows []T, wide bool) (shown []T, more int) {
	if wide || len(rows) <= listed {
		return rows, 0
	}
	return rows[:listed], len(rows) - listed
}

// writeAttention prints the rows that need attention, if any, as a table under a title, and explains them.
func writeAttention[T judged](p *view.Printer, title, noun string, rows []T, wide bool, table func([]T) *view.Grid) {
	if len(rows) == 0 {
		return
	}
	shown, more := few(rows, wide)
	p.Section(title+" that need attention", table(shown), "")
	explain(p, shown)
	if more > 0 {
		p.Printf("%s: -o wide lists them.\n", view.Count(more, "more "+noun))
	}
}

// conditionsOf converts an object's conditions.
func conditionsOf(list []metav1.Condition) []introspect.Condition {
	out := []introspect.Condition{}
	for _, c := range list {
		out = append(out, introspect.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.UTC()})
	}
	return out
}
