// Bench measures Berth's budgets, each against its reference in the same run, and writes them to a
// file as a list of {"name","value","reference","ratio","unit","runs"}.
//
// The table of groups says what is measured, and the table of budgets against what. Value and
// reference of figures that depend on the machine alternate run by run; medians are reported.
// Run it as root on a machine that does nothing else.
//
//	main.go     flags, and the groups of figures
//	worlds.go   what must be up for a group: labs, clusters, a virtual machine
//	results.go  the file of the results, budgets, and the table that is printed
//	testbed.go  a lab whose plugins are called as by a container runtime
//
// The other files measure, each one subject.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/bench/branches"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/egressclients"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/ports"
	"github.com/berthnet/berth/bench/scale"
)

func main() {
	bubble.Child(map[string]bubble.Work{
		scale.Job.Name: scale.Job.Work(), ports.Job.Name: ports.Job.Work(), egressclients.Job.Name: egressclients.Job.Work(), branches.Job.Name: branches.Job.Work(),
	}) // does one run and ends, if this process is for that
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags of the program.
type options struct {
	binDir, refDir string // Berth's programs, and the reference plugins
	amazonDir      string // the Amazon VPC CNI's programs
	images         string // folders of the images of a whole cluster's machines, separated by colons
	machine        string // the script that runs a command in a virtual machine
	inside         bool   // this process runs in that machine
	assets         string // the control plane's programs
	rounds         int    // runs behind each median of what a lab measures
	profiles       string // the directory of CPU profiles; empty: none are made
}

// bench has what all measurements share, and keeps up what the current group needs.
type bench struct {
	options  options
	profiles int    // how many were made
	up       *world // nil: nothing
	bed      *testbed
	cluster  *cluster
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	o := &b.options
	out := flag.String("out", "bench/results.json", "file of the results")
	only := flag.String("only", "", "groups of figures to measure, separated by commas: "+strings.Join(names(groups), ", ")+
		"; or all with a common prefix: "+strings.Join(prefixes, ", ")+" (default: all but "+strings.Join(onDemand, " and ")+"). Other figures stay in the file as they are")
	needs := flag.Bool("needs", false, "print what the chosen groups need, a package or a name a line, and measure nothing")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of berth, berthd, berth-operator and null")
	flag.StringVar(&o.refDir, "reference-dir", "", "directory of the reference plugins ptp and host-local")
	flag.StringVar(&o.amazonDir, "amazon-vpc-cni-dir", "", "directory of the Amazon VPC CNI's programs")
	flag.StringVar(&o.machine, "virtual-machine", "", "the script that runs a command in a virtual machine: hack/vm.sh")
	flag.BoolVar(&o.inside, "inside", false, "this is the virtual machine: measure here what needs it, and only write the file of the results")
	flag.StringVar(&o.images, "lab-images", "", "folders of the images that machines of a whole cluster have, separated by colons")
	flag.IntVar(&o.rounds, "rounds", 40, "runs behind each median of what a lab measures")
	flag.StringVar(&o.profiles, "profiles", "", "directory for CPU profiles of the runs in virtual time (default: none are made)")
	flag.Parse()
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if *needs {
		for _, part := range needed(chosen) {
			fmt.Println(part)
		}
		return nil
	}
	defer must.Catch(&err)
	must.OK(b.check(chosen))
	if o.profiles != "" {
		must.OK(os.MkdirAll(o.profiles, 0o755))
	}
	start := time.Now()
	defer func() { err = errors.Join(err, b.close()) }()
	var results []Result
	here, machine := b.split(chosen)
	for _, g := range here {
		results = append(results, must.Get(b.measure(ctx, g))...)
	}
	if o.inside {
		return write(*out, results)
	}
	if len(machine) > 0 {
		must.OK(b.close())
		results = append(results, must.Get(b.inMachine(ctx, machine))...)
	}
	all := results
	if *only != "" {
		all = must.Get(merge(*out, results))
	}
	must.OK(write(*out, all))
	fmt.Println()
	missed := report(os.Stdout, results)
	beside(os.Stdout, results)
	fmt.Printf("\n%d figures, %d beyond their budget, in %v; written to %s\n", len(results), missed, time.Since(start).Round(time.Second), *out)
	return nil
}

// measure measures the figures of a group.
func (b *bench) measure(ctx context.Context, g group) (results []Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("measure %s: %w", g.name, err)
		}
	}()
	defer must.Catch(&err)
	b.provide(ctx, g.needs)
	say("%s: %s", g.name, g.what)
	return g.run(ctx, b), nil
}

// profile is the file of one more CPU profile, or "".
func (b *bench) profile(name string) string {
	if b.options.profiles == "" {
		return ""
	}
	b.profiles++
	return filepath.Join(b.options.profiles, fmt.Sprintf("%02d-%s.pprof", b.profiles, name))
}

// group is figures that are measured together. They run in this order: the
// later ones leave more pods on the node.
type group struct {
	name, what string
	needs      *world
	run        func(context.Context, *bench) []Result
}

// prefixes stand for all groups whose names begin with them and a hyphen.
var prefixes = []string{"scale", "limiter", "pools", "ports", "egress"}

// These groups take long, or build much that nothing else needs.
const (
	hugeGroup   = "huge-operator"
	amazonGroup = "amazon-vpc-cni"
)

// onDemand are measured only when -only names them.
var onDemand = []string{hugeGroup, amazonGroup}

var groups = []group{
	{"size", "the plugin's size, and the memory of an idle daemon", nodeModeLab, sizes},
	{"exec", "whole ADD and DEL by exec, in turn with ptp + host-local", nodeModeLab, execs},
	{"parallel", "8 ADDs at a time, in turn with one at a time", nodeModeLab, parallel},
	{"daemon", "ADD in the daemon, in turn with its netlink calls", nodeModeLab, daemonAdds},
	{"families", "a pod's link with both families, in turn with IPv4 only", nodeModeLab, families},
	{"pods", "250 and 500 pods on a node, in turn with a node of 10", nodeModeLab, manyPods},
	{"limiter-fill", "filling nodes within EC2's limits, against what those force; in virtual time", nothing, fills},
	{"limiter-throttled", "one throttled call", nothing, throttles},
	{"limiter-refused", "filling 400 nodes while calls are refused at random, against none", nothing, refusals},
	{"limiter-foreign", "filling 100 nodes beside a client that never backs off", nothing, fillsBesideOthers},
	{"limiter-peers", "four daemons in node mode beside such a client, and while calls are refused at random", nothing, peersBesideOthers},
	{"scale-join", "the ENI allocator when 100 to 10,000 nodes join", nothing, joins},
	{"scale-event", "one event on one of 2,000 nodes, in turn with one of 100", nothing, singleEvents},
	{"scale-memory", "the ENI allocator's memory with 2,000 and 10,000 nodes", nothing, memories},
	{"scale-operator", "the whole operator with a real API server: 500 nodes, and 2,000", controlPlanePrograms, operators},
	{"pools-book", "which of a million blocks are taken", nothing, poolBook},
	{"pools-requests", "5,000 nodes ask for a block at once, in turn with 1,000, with a real API server", controlPlanePrograms, blockRequests},
	{"pools-add", "ADD and DEL with addresses of a pool, as in exec and daemon", poolModeLab, poolAdds},
	{"ports-burst", "2,000 pods ask at once for ports of a VPC whose API takes 400 ms a call and eight at a time; in virtual time", nothing, portBursts},
	{"ports-add", "ADD and DEL with one port of a VPC and with four, in turn with ovs-vsctl", portModeLab, portAdds},
	{"egress-clients", "clients of Egresses are replaced by others among 10,000 pods, in turn with 1,000; in virtual time", nothing, egressClientFigures},
	{"egress-throughput", "TCP by a tunnel and a gateway, in turn with the same hops without a tunnel", machineKernel, egressThroughput},
	{"egress-add", "ADD and DEL with an Egress, in turn with none", machineEgress, egressAdds},
	{"egress-failover", "a client's gateway goes: new connections by tunnels to gateways, in turn with the Service", machineEgress, egressFailover},
	{"branch-burst", "50 pods come to one node at once, and EC2 lets few calls pass; in virtual time", nothing, branchBursts},
	{"branch-add", "ADD and DEL of pods whose first interface is a branch of EC2, in turn with an address of an ENI", machineBranches, branchAdds},
	{"pods-ready", "a Deployment of 30 pods on three nodes until all are Ready, in turn with ptp + host-local", wholeCluster, podsReady},
	{"burst-ready", "100 pods for one node at once until they are Ready, likewise", wholeCluster, burstReady},
	{hugeGroup, "the whole operator with 10,000 nodes: ten minutes and 6 GiB of memory", controlPlanePrograms, hugeOperator},
	{amazonGroup, "the same work as by the Amazon VPC CNI, beside it: 20 minutes", comparison, compareWithAmazon},
}

// names are the names of groups.
func names(of []group) (list []string) {
	for _, g := range of {
		list = append(list, g.name)
	}
	return list
}

// choose picks groups by name, in the order of groups.
func choose(only string) ([]group, error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return slices.Contains(onDemand, g.name) }), nil
	}
	asked := strings.Split(only, ",")
	for _, name := range asked {
		if !slices.Contains(prefixes, name) && !slices.Contains(names(groups), name) {
			return nil, fmt.Errorf("-only: no group is called %q, expected some of %s", name, strings.Join(names(groups), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(groups), func(g group) bool {
		prefix, _, _ := strings.Cut(g.name, "-")
		return !slices.Contains(asked, g.name) && !(slices.Contains(asked, prefix) && slices.Contains(prefixes, prefix))
	}), nil
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
