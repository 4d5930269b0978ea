// Bench measures Berth's budgets, each against its reference in the same run,
// and writes them to a file as a list of
// {"name","value","reference","ratio","unit","runs"}.
//
// What is compared: real berthd processes and the real plugin on a lab VPC,
// against the reference plugins ptp and host-local under the same libcni calls,
// against a plugin that does nothing, against the bare netlink calls, or against
// Berth itself on a node with few pods; Berth against the reference plugins on the
// kubelets of one cluster; Berth against the Amazon VPC CNI in a lab of
// the same specification; and the operator with thousands of nodes,
// against itself with few, or against the time that EC2's limits force, or with
// nodes that ask for blocks of an address pool; and egress by tunnels, in a virtual machine
// whose kernel has them, against the same without. Value and reference of what
// depends on the machine alternate run by run; medians are reported.
// Run it as root on a machine that does nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/bench/branches"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/egressclients"
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

func run(ctx context.Context) (err error) {
	b := &bench{}
	out := flag.String("out", "bench/results.json", "file of the results")
	flag.StringVar(&b.options.binDir, "bin-dir", "bin", "where berth, berthd, berth-operator and null are")
	flag.StringVar(&b.options.refDir, "reference-dir", "", "where the reference plugins ptp and host-local are")
	only := flag.String("only", "", "groups of figures to measure, separated by commas: "+strings.Join(groupNames(), ", ")+
		"; or those that begin alike by "+strings.Join(prefixes, ", ")+" (default: all but "+strings.Join(onDemand, " and ")+"). Other figures stay in the file as they are")
	flag.StringVar(&b.options.amazonDir, "amazon-vpc-cni-dir", "", "where the Amazon VPC CNI's programs are")
	flag.StringVar(&b.options.machine, "virtual-machine", "", "the script that runs a command in a virtual machine: hack/vm.sh")
	flag.BoolVar(&b.options.inside, "inside", false, "this is the virtual machine: measure here what needs it, and tell the results by the file only")
	flag.StringVar(&b.options.images, "lab-images", "", "folders of the images that machines of a whole cluster have, separated by colons")
	flag.IntVar(&b.options.rounds, "rounds", 40, "runs behind each median of what a lab measures")
	flag.StringVar(&b.profiles.dir, "profiles", "", "directory for CPU profiles of the scale runs (default: none are made)")
	needs := flag.Bool("needs", false, "print what the chosen groups need, a package or a name a line, and measure nothing")
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
	if err := b.check(chosen); err != nil {
		return err
	}
	if b.profiles.dir != "" {
		if err := os.MkdirAll(b.profiles.dir, 0o755); err != nil {
			return fmt.Errorf("make the profiles' directory: %w", err)
		}
	}

	start := time.Now()
	defer func() { err = errors.Join(err, b.close()) }()
	var results []Result
	here, machine := b.split(chosen)
	for _, g := range here {
		if err := b.provide(ctx, g.needs); err != nil {
			return err
		}
		say("%s: %s", g.name, g.what)
		got, err := g.run(ctx, b)
		if err != nil {
			return fmt.Errorf("measure %s: %w", g.name, err)
		}
		results = append(results, got...)
	}
	if b.options.inside {
		return write(*out, results)
	}
	if len(machine) > 0 {
		if err := b.provide(ctx, nothing); err != nil {
			return err
		}
		got, err := b.inMachine(ctx, machine)
		if err != nil {
			return err
		}
		results = append(results, got...)
	}
	all := results
	if *only != "" {
		if all, err = besides(*out, results); err != nil {
			return err
		}
	}
	if err := write(*out, all); err != nil {
		return err
	}
	fmt.Println()
	missed := report(os.Stdout, results)
	beside(os.Stdout, results)
	fmt.Printf("\n%d figures, %d beyond their budget, in %v; written to %s\n", len(results), missed, time.Since(start).Round(time.Second), *out)
	return nil
}

// group is figures that are measured together. They run in this order: the
// later ones leave more pods on the node.
type group struct {
	name, what string
	needs      need
	run        func(context.Context, *bench) ([]Result, error)
}

// prefixes stand for all groups whose names begin with them and a hyphen.
var prefixes = []string{"scale", "limiter", "pools", "ports", "egress"}

// These groups take long, or build much that nothing else needs.
const (
	hugeGroup   = "huge-operator"
	amazonGroup = "amazon-vpc-cni"
)

// onDemand are measured only when they are asked for.
var onDemand = []string{hugeGroup, amazonGroup}

var groups = []group{
	{"size", "the plugin's size, and the memory of an idle daemon", nodeModeLab, sizes},
	{"exec", "whole ADD and DEL by exec, in turn with ptp + host-local", nodeModeLab, execs},
	{"parallel", "8 ADDs at a time, in turn with one at a time", nodeModeLab, parallel},
	{"daemon", "ADD in the daemon, in turn with its netlink calls", nodeModeLab, daemonAdd},
	{"families", "a pod's link with both families, in turn with IPv4 only", nodeModeLab, families},
	{"pods", "250 and 500 pods on a node, in turn with a node of 10", nodeModeLab, manyPods},
	{"limiter-fill", "filling nodes within EC2's limits, against what those force; in virtual time", nothing, fills},
	{"limiter-throttled", "one throttled call", nothing, throttles},
	{"limiter-refused", "filling 400 nodes while calls are refused at random, against none", nothing, refusals},
	{"limiter-foreign", "filling 100 nodes beside a client that never backs off", nothing, besideOthers},
	{"limiter-peers", "four daemons in node mode beside such a client, and while calls are refused at random", nothing, peersBesideOthers},
	{"scale-join", "the ENI allocator when 100 to 10,000 nodes join", nothing, joins},
	{"scale-event", "one event on one of 2,000 nodes, in turn with one of 100", nothing, singleEvents},
	{"scale-memory", "what the ENI allocator keeps of 2,000 and 10,000 nodes", nothing, memories},
	{"scale-operator", "the whole operator with a real API server: 500 nodes, and 2,000", controlPlanePrograms, operators},
	{"pools-book", "which of a million blocks are taken", nothing, poolBook},
	{"pools-requests", "5,000 nodes ask for a block at once, in turn with 1,000, with a real API server", controlPlanePrograms, blockRequests},
	{"pools-add", "ADD and DEL with addresses of a pool, as in exec and daemon", poolModeLab, poolAdds},
	{"ports-burst", "2,000 pods ask at once for ports of a VPC whose API takes 400 ms a call and eight at a time; in virtual time", nothing, portBursts},
	{"ports-add", "ADD and DEL with one port of a VPC and with four, in turn with ovs-vsctl", portModeLab, portAdds},
	{"egress-clients", "clients of Egresses are replaced by others among 10,000 pods, in turn with 1,000; in virtual time", nothing, egressClientFigures},
	{"egress-throughput", "TCP by a tunnel and a gateway, in turn with the same hops without a tunnel", machineKernel, egressThroughput},
	{"egress-add", "ADD and DEL with an Egress, in turn with none", machineLab, egressAdds},
	{"egress-failover", "a client's gateway goes: new connections by tunnels to gateways, in turn with the Service", machineLab, egressFailover},
	{"branch-burst", "50 pods come to one node at once, and EC2 lets few calls pass; in virtual time", nothing, branchBursts},
	{"branch-add", "ADD and DEL of pods whose first interface is a branch of EC2, in turn with an address of an ENI", machineBranches, branchAdds},
	{"pods-ready", "a Deployment of 30 pods on three nodes until all are Ready, in turn with ptp + host-local", wholeCluster, podsReady},
	{"burst-ready", "100 pods for one node at once until they are Ready, likewise", wholeCluster, burstReady},
	{hugeGroup, "the whole operator with 10,000 nodes: ten minutes and 6 GiB of memory", controlPlanePrograms, hugeOperator},
	{amazonGroup, "the same work as by the Amazon VPC CNI, beside it: 20 minutes", comparison, compareWithAmazon},
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
		return slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return slices.Contains(onDemand, g.name) }), nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		wanted[name] = true
	}
	var chosen []group
	for _, g := range groups {
		prefix, _, _ := strings.Cut(g.name, "-")
		if wanted[g.name] || wanted[prefix] && slices.Contains(prefixes, prefix) {
			chosen = append(chosen, g)
			delete(wanted, g.name)
		}
	}
	for _, prefix := range prefixes {
		delete(wanted, prefix)
	}
	for name := range wanted {
		return nil, fmt.Errorf("-only: no group is called %q, expected some of %s", name, strings.Join(groupNames(), ", "))
	}
	return chosen, nil
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
