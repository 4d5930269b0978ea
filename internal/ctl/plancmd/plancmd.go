// Package plancmd is the command plan of berthctl and kubectl berth: it simulates scenarios (internal/planner), prints
// their results, and serves the planner's page.
package plancmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/internal/web"
)

// Options are what the command needs besides files.
type Options struct {
	Page fs.FS // the planner's page
	// Cluster makes a scenario of a running cluster; nil: the command reads files only.
	Cluster func(context.Context, *cobra.Command) (planner.Scenario, error)
}

// command is the values of the flags.
type command struct {
	Options
	output string
	csv    string
	serve  string
	list   bool
	show   bool
}

const long = `Simulate the effect of Berth's settings under a workload: the addresses that nodes hold, EC2
calls, how long pods wait and which limits they reach, for several alternatives side by side.

A scenario is a YAML or JSON file, "-" for standard input, or example:NAME for one that ships
with Berth. The simulation runs the planner, the reconciler and the rate limiter of berthd and
berth-operator in virtual time: a day of a hundred nodes takes seconds to a minute.`

// New returns the command.
func New(o Options) *cobra.Command {
	c := &command{Options: o}
	cmd := &cobra.Command{
		Use: "plan [FILE|example:NAME]...", Short: "Simulate settings under a workload", Long: long,
		Example: `  berthctl plan --list
  berthctl plan example:three-nodes
  berthctl plan example:small-subnet --show > mine.yaml
  berthctl plan mine.yaml --csv mine.csv
  berthctl plan --serve localhost:8080`,
		RunE: c.run,
	}
	f := cmd.Flags()
	f.StringVarP(&c.output, "output", "o", "table", "output format: table or json")
	f.StringVar(&c.csv, "csv", "", "also write the addresses of subnets over time to this file, as CSV")
	f.StringVar(&c.serve, "serve", "", "serve the planner's page on this address, such as localhost:8080, until interrupted")
	f.BoolVar(&c.list, "list", false, "list the scenarios that ship with Berth")
	f.BoolVar(&c.show, "show", false, "print the scenarios instead of simulating them")
	return cmd
}

func (c *command) run(cmd *cobra.Command, args []string) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	switch {
	case c.output != "table" && c.output != "json":
		return fmt.Errorf("--output is %q: expected table or json", c.output)
	case c.list:
		return list(out)
	case c.serve != "":
		return c.servePage(ctx, cmd.ErrOrStderr())
	case len(args) == 0 && c.Cluster == nil:
		return errors.New("expected a scenario: a file, or example:NAME (--list prints the names)")
	case c.csv != "" && len(args) > 1:
		return fmt.Errorf("--csv: expected one scenario, not %d", len(args))
	}
	debug.SetGCPercent(400) // a simulation makes much garbage of little
	if len(args) == 0 {
		s, err := c.Cluster(ctx, cmd)
		if err != nil {
			return err
		}
		return c.simulate(ctx, out, s, true)
	}
	for _, name := range args {
		text, err := read(cmd.InOrStdin(), name)
		if err != nil {
			return err
		}
		if c.show {
			if _, err := out.Write(text); err != nil {
				return err
			}
			continue
		}
		s, err := planner.Parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := c.simulate(ctx, out, s, false); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// read returns the text of a scenario.
func read(stdin io.Reader, name string) ([]byte, error) {
	if example, ok := strings.CutPrefix(name, "example:"); ok {
		return planner.Example(example)
	}
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, planner.MaxSize+1))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, planner.MaxSize+1)) // Parse refuses what is too large
}

func list(out io.Writer) error {
	examples, err := planner.Examples()
	if err != nil {
		return err
	}
	p := &view.Printer{W: out}
	for _, s := range examples {
		p.Printf("%s\n    %s\n", s.Name, s.Description)
	}
	return p.Err
}

// simulate simulates a scenario and prints the result.
func (c *command) simulate(ctx context.Context, out io.Writer, s planner.Scenario, recommend bool) error {
	if c.show {
		return view.WriteYAML(out, s)
	}
	r, err := planner.Simulate(ctx, s)
	if err != nil {
		return err
	}
	if c.csv != "" {
		if err := writeCSV(c.csv, r); err != nil {
			return err
		}
	}
	if c.output == "json" {
		return view.WriteJSON(out, r)
	}
	p := &view.Printer{W: out}
	show(p, r)
	if recommend {
		planner.Recommend(s, r).Print(p.Printf)
	}
	return p.Err
}

func writeCSV(name string, r *planner.Result) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("--csv: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return r.WriteCSV(f)
}

// servePage serves the page until ctx ends.
func (c *command) servePage(ctx context.Context, info io.Writer) error {
	l, err := web.Listen("serve", c.serve)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(info, "The planner is at http://%s/\n", l.Addr()); err != nil {
		return err
	}
	h := planner.Handler(c.Page, planner.ServeOptions{Simulate: planner.InChild})
	if web.OnLoopback(l) {
		h = web.LocalOnly(h)
	}
	return web.Serve(ctx, l, h, web.Options{MaxBody: planner.MaxSize})
}
