package kubectl

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthnet/berth/internal/ctl/view"
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

// unread prints what could not be read.
func unread(p *view.Printer, list []string) {
	for _, why := range list {
		p.Printf("\n%s %s\n", view.Toned{Text: "! could not be read:", Tone: view.Warn}, why)
	}
}
