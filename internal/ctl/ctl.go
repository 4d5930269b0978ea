// Package ctl is berthctl: views of a node for the people who run it, and
// calculators for those who plan one. Views only read what berthd serves.
package ctl

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/version"
)

// New is the program's command. Its errors are for a person to read.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "berthctl",
		Short:             "Look at a node's addresses, and plan them",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	cmd.AddCommand(newIPManager(), newStatus(), newMaxPods(), newWarm(), newUninstall(), bundle.New(), newVersion())
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}

// format is the flag -o.
type format string

const (
	table   format = "table"
	jsonFmt format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "table|json" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if s != string(table) && s != string(jsonFmt) {
		return fmt.Errorf("expected %s or %s", table, jsonFmt)
	}
	*f = format(s)
	return nil
}

func (f *format) register(cmd *cobra.Command) {
	*f = table
	cmd.Flags().VarP(f, "output", "o", "form of the output")
}

func writeJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, printableJSON(string(text)))
	return err
}

// grid is a table with aligned columns. The first row is its heading.
type grid [][]string

func (g *grid) add(cells ...string) { *g = append(*g, cells) }

// write writes a grid that has rows, or else what to say of an empty one.
func (g grid) write(w io.Writer, empty string) error {
	if len(g) < 2 {
		_, err := fmt.Fprintln(w, empty)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range g {
		for i, cell := range row {
			row[i] = orDash(printable(cell))
		}
		if _, err := fmt.Fprintln(tw, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// age is how long ago since was at the moment now: "5s", "3m", "2h10m", "4d".
func age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	d := max(0, now.Sub(since))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// count is a number of things: "1 pod", "2 pods".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
