// Bench measures Berth's budgets, each against its reference in the same run,
// and writes them to a file as a list of
// {"name","value","reference","ratio","unit","runs"}.
//
// What is compared: real berthd processes and the real plugin on a lab VPC,
// against the reference plugins ptp and host-local under the same libcni calls,
// against the bare netlink calls, or against Berth itself on a node with few
// pods. Value and reference alternate run by run; medians are reported.
// Run it as root on a machine that does nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	out := flag.String("out", "bench/results.json", "file of the results")
	bin := flag.String("bin-dir", "bin", "where berth and berthd are")
	reference := flag.String("reference-dir", "", "where the reference plugins ptp and host-local are")
	only := flag.String("only", "", "groups of figures to measure, separated by commas: "+strings.Join(groupNames(), ", ")+" (default: all)")
	rounds := flag.Int("rounds", 40, "runs behind each median")
	flag.Parse()
	if *reference == "" {
		return errors.New("-reference-dir is empty: expected the directory that holds ptp and host-local")
	}
	for _, p := range []string{filepath.Join(*bin, "berthd"), filepath.Join(*bin, "berth"), filepath.Join(*reference, "ptp"), filepath.Join(*reference, "host-local")} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("a program to measure is missing: %w", err)
		}
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}

	start := time.Now()
	b, err := open(ctx, *bin, *reference, *rounds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var results []Result
	for _, g := range chosen {
		say("%s: %s", g.name, g.what)
		got, err := g.run(ctx, b)
		if err != nil {
			return fmt.Errorf("measure %s: %w", g.name, err)
		}
		results = append(results, got...)
	}
	if err := write(*out, results); err != nil {
		return err
	}
	fmt.Println()
	missed := report(os.Stdout, results)
	fmt.Printf("\n%d figures, %d beyond their budget, in %v; written to %s\n", len(results), missed, time.Since(start).Round(time.Second), *out)
	return nil
}

// group is figures that are measured together. They run in this order: the
// later ones leave more pods on the node.
type group struct {
	name, what string
	run        func(context.Context, *bench) ([]Result, error)
}

var groups = []group{
	{"size", "the plugin's size, and the memory of an idle daemon", sizes},
	{"exec", "whole ADD and DEL by exec, in turn with ptp + host-local", execs},
	{"parallel", "8 ADDs at a time, in turn with one at a time", parallel},
	{"daemon", "ADD in the daemon, in turn with its netlink calls", daemonAdd},
	{"families", "a pod's link with both families, in turn with IPv4 only", families},
	{"pods", "250 and 500 pods on a node, in turn with a node of 10", manyPods},
}

func groupNames() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// choose picks groups by name, in the order of groups.
func choose(only string) ([]group, error) {
	if only == "" {
		return groups, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		wanted[name] = true
	}
	var chosen []group
	for _, g := range groups {
		if wanted[g.name] {
			chosen = append(chosen, g)
			delete(wanted, g.name)
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("-only: no group is called %q, expected some of %s", name, strings.Join(groupNames(), ", "))
	}
	return chosen, nil
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
