// Command upstream runs Kubernetes' own end-to-end tests of networking, and the node tests that need networking,
// against Berth: on a cluster of the lab that it starts in a mode, or on an existing cluster with -kubeconfig.
//
//	upstream -mode node -e2e e2e.test -ginkgo ginkgo -images DIR
//
// It reports failures and progress while the tests run, and leaves a directory for each mode below -out, with a JUnit
// report, the log of the tests and the results. -page writes the results of all modes in a directory into a page of
// the documentation. The exit code is 1 if a spec failed, and 2 for invalid flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/host"
)

var errSpecsFailed = errors.New("specs failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout); {
	case err == nil:
	case errors.Is(err, flag.ErrHelp), errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "upstream:", err)
		stop()
		os.Exit(2) //nolint:gocritic // stopped above
	default:
		fmt.Fprintln(os.Stderr, "upstream:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stopped above
	}
}

// usageError is an error in the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// options are the options of the command line.
type options struct {
	suite      suite
	cluster    clusterPolicies
	choice     choice
	mode       string
	families   ipfamily.Set
	kubeconfig string
	images     string
	containerd string
	proxy      string
	page       string
	record     string
	list       bool
	keep       bool
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("upstream", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.suite.e2e, "e2e", "", "program of Kubernetes' end-to-end tests (hack/tool.sh kubee2e e2e.test)")
	f.StringVar(&o.suite.ginkgo, "ginkgo", "", "program that runs the tests (hack/tool.sh kubee2e ginkgo)")
	f.StringVar(&o.cluster.program, "cluster-policies", "", "program of the conformance suite of ClusterNetworkPolicy (hack/tool.sh networkpolicyapi conformance.test)")
	f.StringVar(&o.cluster.crd, "cluster-policy-crd", "", "file that defines ClusterNetworkPolicy, for a cluster that is raised")
	f.StringVar(&o.suite.out, "out", "dist/conformance", "directory for reports")
	f.IntVar(&o.suite.procs, "procs", 4, "number of concurrent specs")
	f.IntVar(&o.suite.attempts, "attempts", 1, "maximum number of attempts per spec")
	f.DurationVar(&o.suite.limit, "limit", 2*time.Hour, "time limit of the tests")
	f.StringVar(&o.mode, "mode", "node", "mode of the cluster to start: "+strings.Join(modes, ", "))
	families := f.String("ip-families", "", "IP families of pods, in the modes node and operator and with -kubeconfig: ipv4, ipv6 or dual (default: as in docs/reference/conformance.md for -mode)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "run against this cluster instead of starting one")
	f.StringVar(&o.images, "images", "", "directory of the images for the cluster to start (hack/lab-images.sh)")
	f.StringVar(&o.containerd, "containerd", "", "directory of containerd for the cluster to start (default: this machine's containerd)")
	f.StringVar(&o.proxy, "proxy", "", "mode of kube-proxy: nftables or iptables (default: as in docs/reference/conformance.md for -mode)")
	f.StringVar(&o.page, "page", "", "write the results in the directory -record into this page, and run nothing")
	f.StringVar(&o.record, "record", "", "directory for the results of whole groups, as MODE-FAMILIES.json")
	f.BoolVar(&o.list, "list", false, "print the specs to run and those not applicable, and run nothing")
	f.BoolVar(&o.keep, "keep", false, "keep the started cluster after a failure, until interrupted")
	names := f.String("groups", "conformance,policy,clusterpolicy,network,node", "groups of specs, separated by commas: conformance, network, node, policy, clusterpolicy, short")
	focus := f.String("focus", "", "run only specs whose names match this pattern")
	skip := f.String("skip", "", "skip specs whose names match this pattern")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, usageError{err}
	}
	o.suite.flags = f.Args()
	o.choice.groups = strings.FieldsFunc(*names, func(r rune) bool { return r == ',' })
	for _, name := range o.choice.groups {
		if name != "short" && !slices.ContainsFunc(groups, func(g group) bool { return g.name == name }) {
			return o, usagef("-groups has %q, expected conformance, network, node, policy, clusterpolicy or short", name)
		}
	}
	var err error
	if *families != "" {
		if o.families, err = ipfamily.Parse(*families); err != nil {
			return o, usagef("-ip-families: %w", err)
		}
	}
	if o.choice.focus, err = pattern(*focus); err != nil {
		return o, usagef("-focus: %w", err)
	}
	if o.choice.skip, err = pattern(*skip); err != nil {
		return o, usagef("-skip: %w", err)
	}
	return o, o.check()
}

func pattern(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no pattern is a choice
	}
	return regexp.Compile(text)
}

func (o options) check() error {
	switch {
	case o.page != "" && o.record == "":
		return usagef("-page needs -record, the directory of the results")
	case o.page != "":
		return nil
	case o.suite.e2e == "" || o.suite.ginkgo == "":
		return usagef("-e2e and -ginkgo are needed: `make conformance` builds both")
	case !slices.Contains(modes, o.mode):
		return usagef("-mode is %q, expected one of %s", o.mode, strings.Join(modes, ", "))
	case o.families != "" && o.podFamilies() != o.families:
		return usagef("-ip-families is %s, and pods in mode %s have %s", o.families, o.mode, o.podFamilies())
	case o.proxy != "" && !slices.Contains(host.ProxyModes, host.ProxyMode(o.proxy)):
		return usagef("-proxy is %q, expected one of %v", o.proxy, host.ProxyModes)
	case o.suite.procs < 1:
		return usagef("-procs is %d, expected at least 1", o.suite.procs)
	case o.suite.attempts < 1:
		return usagef("-attempts is %d, expected at least 1", o.suite.attempts)
	case o.kubeconfig == "" && o.images == "" && !o.list:
		return usagef("-images is needed to start a cluster: hack/lab-images.sh prints the directory")
	}
	return nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	if o.page != "" {
		all, err := readResults(o.record)
		if err != nil {
			return err
		}
		return writePage(o.page, all)
	}
	// The tests run in a separate directory.
	for _, path := range []*string{&o.suite.e2e, &o.suite.ginkgo, &o.suite.out, &o.kubeconfig, &o.cluster.program, &o.cluster.crd} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
	}
	all, err := o.suite.specs(ctx)
	if err != nil {
		return err
	}
	p := choose(all, o.choice, o.network())
	if len(p.run) == 0 && !o.hasClusterPolicies() {
		return fmt.Errorf("none of the %d specs is selected and applicable", len(all))
	}
	if o.list {
		return list(out, p)
	}
	return o.test(ctx, p, out)
}

// hasClusterPolicies reports whether the suite of ClusterNetworkPolicy is chosen and applicable.
func (o options) hasClusterPolicies() bool {
	return slices.Contains(o.choice.groups, groupClusterPolicy) && !o.network().ports
}

// list prints a plan.
func list(out io.Writer, p plan) error {
	var text strings.Builder
	for _, s := range p.run {
		fmt.Fprintf(&text, "run             %-12s %s\n", groupOf(s), s.name)
	}
	for _, r := range p.exclude {
		fmt.Fprintf(&text, "not applicable  %-12s %s: %s\n", r.Group, r.Name, r.Why)
	}
	fmt.Fprintf(&text, "%d to run, %d not applicable\n", len(p.run), len(p.exclude))
	_, err := io.WriteString(out, text.String())
	return err
}

// test starts a cluster unless one exists, runs the plan on it and reports.
func (o options) test(ctx context.Context, p plan, out io.Writer) (err error) {
	r := results{Mode: o.mode, Families: o.podFamilies()}
	o.suite.out = filepath.Join(o.suite.out, r.name())
	version, err := o.suite.version(ctx)
	if err != nil {
		return err
	}
	var c cluster
	if o.kubeconfig != "" {
		if c, err = existing(ctx, o.kubeconfig); err != nil {
			return err
		}
	} else {
		var lower func() error
		if c, lower, err = o.raise(ctx, out); err != nil {
			return err
		}
		defer func() {
			if errors.Is(err, errSpecsFailed) && o.keep {
				fmt.Fprintf(out, "The cluster stays until Ctrl-C: nsenter --net=%s kubectl --kubeconfig %s\n", c.netns, c.kubeconfig)
				<-ctx.Done()
			}
			if err = errors.Join(err, lower()); err == nil {
				err = o.forget()
			}
		}()
	}
	started := time.Now()
	fmt.Fprintf(out, "Running %d specs of Kubernetes %s in mode %s, pods of %s, %d at a time; %d are not applicable\n",
		len(p.run), version, r.Mode, r.Families, o.suite.procs, len(p.exclude))
	r.Kubernetes = version
	if r.Specs, err = o.specs(ctx, c, p, out); err != nil {
		return err
	}
	if err := r.write(filepath.Join(o.suite.out, "results.json")); err != nil {
		return err
	}
	if o.record != "" && o.choice.whole() && ctx.Err() == nil {
		if err := r.keep(o.record, o.choice.groups); err != nil {
			return err
		}
	}
	summarize(out, r, time.Since(started), o.suite.out)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted before all specs were run: %w", err)
	}
	if n := count(r.Specs, failed); n > 0 {
		return fmt.Errorf("%d %w", n, errSpecsFailed)
	}
	if n := count(r.Specs, notRun); n > 0 {
		return fmt.Errorf("%d specs were not run within %s", n, o.suite.limit)
	}
	return nil
}

// specs runs the plan, and the suite of ClusterNetworkPolicy if it is chosen.
func (o options) specs(ctx context.Context, c cluster, p plan, out io.Writer) ([]result, error) {
	var reports []specReport
	var err error
	if len(p.run) > 0 {
		if reports, err = o.suite.run(ctx, c, p.run, newProgress(out, len(p.run))); err != nil {
			return nil, err
		}
	}
	if why := setUpFailed(reports); why != "" {
		return nil, fmt.Errorf("the setup of the tests failed (log in %s): %s", o.suite.out, why)
	}
	all := judge(p, reports)
	if o.hasClusterPolicies() && ctx.Err() == nil { // policies of the whole cluster apply, so nothing else runs meanwhile
		of, err := o.cluster.run(ctx, c, o.choice.focus, o.suite.out, out)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// summarize prints the result of a run.
func summarize(out io.Writer, r results, took time.Duration, folder string) {
	fmt.Fprintf(out, "\nMode %s, pods of %s, Kubernetes %s, %s:\n", r.Mode, r.Families, r.Kubernetes, took.Round(time.Second))
	for _, outcome := range []string{passed, failed, notRun, notApplicable} {
		fmt.Fprintf(out, "  %4d %s\n", count(r.Specs, outcome), outcome)
	}
	for _, s := range r.Specs {
		if s.Outcome == passed && s.Why != "" {
			fmt.Fprintf(out, "FLAKY %s: %s\n", s.Name, s.Why)
		}
		if s.Outcome == failed {
			fmt.Fprintf(out, "FAILED %s (%.0f s): %s\n", s.Name, s.Seconds, s.Why)
		}
	}
	fmt.Fprintf(out, "Reports: %s (junit_01.xml, results.json, e2e.log)\n", folder)
}
