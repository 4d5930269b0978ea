package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/control"
)

// callsEvery is how often the log is asked for what is new in it.
const callsEvery = 200 * time.Millisecond

func newCalls() *cobra.Command {
	c := &cobra.Command{
		Use:   "calls",
		Short: "Show the EC2 calls: when, what, with which parameters, by whom, and the result",
		Long: `Show the last EC2 calls (up to 4096), oldest first, one a line: time, action,
result (an EC2 error code, ok, LostRequest or LostReply), caller and parameters.
A call that was not authenticated is shown without its parameters.`,
		Args: cobra.NoArgs,
	}
	follow := c.Flags().BoolP("follow", "f", false, "go on with calls as they come")
	action := c.Flags().String("action", "*", "only calls of this `action`, or pattern such as 'Describe*'")
	format := c.Flags().StringP("output", "o", "text", "`format`: text, or json with one object a line")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, _ []string) error {
		show, err := callPrinter(cmd.OutOrStdout(), *format, *action)
		if err != nil {
			return err
		}
		return showCalls(cmd.Context(), lab.Calls, show, *follow)
	})
}

// showCalls prints the calls that ask returns and, if follow is set, later ones until ctx ends.
func showCalls(ctx context.Context, ask func(ctx context.Context, after uint64) ([]vpc.CallRecord, error), show func(vpc.CallRecord) error, follow bool) error {
	tick := time.NewTicker(callsEvery)
	defer tick.Stop()
	for last := uint64(0); ; {
		calls, err := ask(ctx, last)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range calls {
			if err := show(c); err != nil {
				return err
			}
			last = c.Seq
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// callPrinter returns what prints the calls of an action (name or pattern).
func callPrinter(out io.Writer, format, action string) (func(vpc.CallRecord) error, error) {
	show := func(c vpc.CallRecord) error { _, err := fmt.Fprintln(out, callLine(c)); return err }
	switch format {
	case "text":
	case "json":
		show = func(c vpc.CallRecord) error { return json.NewEncoder(out).Encode(c) }
	default:
		return nil, fmt.Errorf("--output %q: want text or json", format)
	}
	return func(c vpc.CallRecord) error {
		if !vpc.Covers(action, c.Action) {
			return nil
		}
		return show(c)
	}, nil
}

// callLine is one call for people: time, action, result, caller, parameters.
func callLine(c vpc.CallRecord) string {
	result, caller := c.Code, c.Principal[strings.LastIndex(c.Principal, ":")+1:]
	if result == "" {
		result = "ok"
	}
	if caller == "" {
		caller = "-"
	}
	line := fmt.Sprintf("%s  %-32s %-12s %s", c.Time.Local().Format("15:04:05.000"), c.Action, result, caller)
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		if name == "Action" || name == "Version" {
			continue
		}
		line += " " + plain(name) + "=" + plain(strings.Join(c.Params[name], ","))
	}
	if c.Omitted > 0 {
		line += fmt.Sprintf(" (%d more parameters)", c.Omitted)
	}
	return line
}

// plain quotes a text if it is empty, or has spaces or characters that a terminal may interpret.
func plain(s string) string {
	if q := strconv.QuoteToGraphic(s); s == "" || q != `"`+s+`"` || strings.ContainsAny(s, " ") {
		return q
	}
	return s
}
