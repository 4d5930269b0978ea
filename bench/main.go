// Bench measures Berth's budgets, each against its reference in the same run, and writes them to a
// file as a list of {"name","value","reference","ratio","unit","runs"}.
//
// The table of groups lists what is measured, and the table of budgets what it is compared with. For
// figures that depend on the machine, value and reference are measured alternately, and the medians are
// reported. Run it as root on an otherwise idle machine.
//
//	main.go     flags, and the groups of figures
//	worlds.go   environments that groups need: labs, clusters, a virtual machine
//	results.go  the results file, the budgets, and the printed table
//	testbed.go  a lab whose plugins are called as by a container runtime
//
// Each of the other files measures one subject.
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

	"github.com/berthnet/berth/bench/blocks"
	"github.com/berthnet/berth/bench/branches"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/egressclients"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/policies"
	"github.com/berthnet/berth/bench/ports"
	"github.com/berthnet/berth/bench/scale"
)

func main() {
	bubble.Child(map[string]bubble.Work{
		scale.Job.Name: scale.Job.Work(), scale.TakeoverJob.Name: scale.TakeoverJob.Work(), ports.Job.Name: ports.Job.Work(), egressclients.Job.Name: egressclients.Job.Work(), branches.Job.Name: branches.Job.Work(),
		policies.Job.Name: policies.Job.Work(), blocks.FullJob.Name: blocks.FullJob.Work(),
	}) // does not return in a child process
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
	kwokDir        string // kwok and its configuration
	images         string // folders with the images of a whole cluster's machines, separated by colons
	machine        string // the script that runs a command in a virtual machine
	inside         bool   // this process runs in that machine
	assets         string // the control plane's programs
	rounds         int    // runs per median that is measured in a lab
	profiles       string // the directory of CPU profiles; empty: no profiles
}

// bench is the state that all measurements share, and the environment of the current group.
type bench struct {
	options  options
	profiles int    // number of profiles so far
	up       *world // current environment; nil: none
	bed      *testbed
	cluster  *cluster
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	o := &b.options
	out := flag.String("out", "bench/results.json", "results file")
	only := flag.String("only", "", "groups of figures to measure, separated by commas: "+strings.Join(names(groups), ", ")+
		"; or all with a common prefix: "+strings.Join(prefixes, ", ")+" (default: all except "+strings.Join(onDemand, ", ")+"). Other figures in the file are not changed")
	needs := flag.Bool("needs", false, "print what the chosen groups need, one package or name per line, and measure nothing")
	flag.StringVar(&o.binDir, "bin-dir", "bin", "directory of berth, berthd, berth-operator and null")
	flag.StringVar(&o.refDir, "reference-dir", "", "directory of the reference plugins ptp and host-local")
	flag.StringVar(&o.amazonDir, "amazon-vpc-cni-dir", "", "directory of the Amazon VPC CNI's programs")
	flag.StringVar(&o.kwokDir, "kwok-dir", "", "directory of KWOK's controller and its configuration: hack/kwok.sh")
	flag.StringVar(&o.machine, "virtual-machine", "", "the script that runs a command in a virtual machine: hack/vm.sh")
	flag.BoolVar(&o.inside, "inside", false, "run inside the virtual machine: measure the groups that need it here, and only write the results file")
	flag.StringVar(&o.images, "lab-images", "", "folders with the images of a whole cluster's machines, separated by colons")
	flag.IntVar(&o.rounds, "rounds", 40, "runs per median that is measured in a lab")
	flag.StringVar(&o.profiles, "profiles", "", "directory for CPU and heap profiles of the runs in virtual time (default: no profiles)")
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
	fmt.Printf("\n%d figures, %d over budget, in %v; written to %s\n", len(results), missed, time.Since(start).Round(time.Second), *out)
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

// profile returns the file for the next CPU profile, or "" if none is wanted.
func (b *bench) profile(name string) string {
	if b.options.profiles == "" {
		return ""
	}
	b.profiles++
	return filepath.Join(b.options.profiles, fmt.Sprintf("%02d-%s.pprof", b.profiles, name))
}

// group is a set of figures that are measured together. Groups run in the order of the table, as later
// ones leave more pods on the node.
type group struct {
	name, what string
	needs      *world
	run        func(context.Context, *bench) []Result
}

// prefixes stand for all groups whose names begin with them and a hyphen.
var prefixes = []string{"scale", "limiter", "pools", "ports", "egress", "policy"}

// These groups take long, or need large builds that no other group needs.
const (
	hugeGroup    = "huge-operator"
	largestGroup = "largest-operator"
	eventsGroup  = "largest-events"
	portsGroup   = "largest-ports"
	clientsGroup = "largest-egress-clients"
	fleetGroup   = "node-fleet"
	amazonGroup  = "amazon-vpc-cni"
	kwokGroup    = "kwok-cluster"
)

// onDemand are measured only when -only names them.
var onDemand = []string{hugeGroup, largestGroup, eventsGroup, portsGroup, clientsGroup, fleetGroup, kwokGroup, amazonGroup}

var groups = []group{
	{"size", "the plugin's size, and the memory of an idle daemon", nodeModeLab, sizes},
	{"exec", "whole ADD and DEL by exec, in turn with ptp + host-local", nodeModeLab, execs},
	{"parallel", "8 ADDs at a time, in turn with one at a time", nodeModeLab, parallel},
	{"daemon", "ADD in the daemon, in turn with its netlink calls", nodeModeLab, daemonAdds},
	{"guard", "ADD beside 1,000 pods of another network, in turn with none", nodeModeLab, guardAdds},
	{"families", "a pod's link with both families, in turn with IPv4 only", nodeModeLab, families},
	{"host", "throughput and round trips between pods of two nodes, in turn with the nodes themselves", nodeModeLab, hostAndPods},
	{"pods", "250 and 500 pods on a node, in turn with a node of 10", nodeModeLab, manyPods},
	{"pods-1000", "1,000 pods on a node with prefixes, in turn with a node of 10", prefixLab, thousandPods},
	{"limiter-fill", "filling nodes within EC2's rate limits, against the minimum that these impose; in virtual time", nothing, fills},
	{"limiter-throttled", "one throttled call", nothing, throttles},
	{"limiter-refused", "filling 400 nodes with calls refused at random, against none refused", nothing, refusals},
	{"limiter-foreign", "filling 100 nodes beside a client that never backs off", nothing, fillsBesideOthers},
	{"limiter-peers", "four daemons in node mode beside such a client, and with calls refused at random", nothing, peersBesideOthers},
	{"scale-join", "the ENI allocator when 100 to 10,000 nodes join", nothing, joins},
	{"scale-event", "one event on one of 2,000 nodes, in turn with one of 100", nothing, singleEvents},
	{"scale-memory", "the ENI allocator's memory with 2,000 and 10,000 nodes", nothing, memories},
	{"scale-takeover", "an operator takes over 3,000 nodes with 30 pods each, in turn with 600; in virtual time", nothing, takeovers},
	{"scale-operator", "the whole operator with a real API server: 500 nodes, and 2,000", controlPlanePrograms, operators},
	{"pools-book", "allocation of one block among a million", nothing, poolAllocation},
	{"pools-requests", "5,000 nodes request a block at once, in turn with 1,000, with a real API server", controlPlanePrograms, blockRequests},
	{"pools-full", "1,000 nodes join a cluster of 10,000 nodes with 100,000 blocks, in turn with one of 100 nodes with 1,000; in virtual time", nothing, fullPools},
	{"pools-add", "ADD and DEL with addresses of a pool, as in exec and daemon", poolModeLab, poolAdds},
	{"ports-burst", "2,000 pods request ports at once of a VPC whose API takes 400 ms per call and serves eight calls concurrently; in virtual time", nothing, portBursts},
	{"ports-add", "ADD and DEL with one port of a VPC and with four, in turn with ovs-vsctl", portModeLab, portAdds},
	{"policy-packets", "packets and connections with 1,000 policies on a node, in turn with none", nodeModeLab, policyPackets},
	{"policy-add", "ADD in the daemon of a pod that 50 policies select, in turn with a node without network policies", policyLab, policyAdds},
	{"policy-first-packet", "100 pods that connect to a server as soon as they have an address", policyLab, policyFirstPackets},
	{"policy-clusters", "network policies in clusters of 2,000 nodes and 160,000 pods; in virtual time", nothing, policyClusters},
	{"egress-clients", "clients of Egresses are replaced by others among 10,000 pods, in turn with 1,000; in virtual time", nothing, egressClientFigures},
	{"egress-throughput", "TCP through a tunnel and a gateway, in turn with the same hops without a tunnel", machineKernel, egressThroughput},
	{"egress-add", "ADD and DEL with an Egress, in turn with none", machineEgress, egressAdds},
	{"egress-failover", "a client's gateway fails: new connections with tunnels to gateways, in turn with the Service", machineEgress, egressFailover},
	{"branch-burst", "50 pods are scheduled to one node at once, with tight EC2 rate limits; in virtual time", nothing, branchBursts},
	{"branch-add", "ADD and DEL of pods whose first interface is an EC2 branch interface, in turn with an address of an ENI", machineBranches, branchAdds},
	{"pods-ready", "a Deployment of 30 pods on three nodes until all are Ready, in turn with ptp + host-local", wholeCluster, podsReady},
	{"burst-ready", "100 pods on one node at once until they are Ready, likewise", wholeCluster, burstReady},
	{hugeGroup, "the whole operator with 10,000 nodes: ten minutes and 6 GiB of memory", controlPlanePrograms, hugeOperator},
	{largestGroup, "an operator takes over 100,000 nodes with three million pods; in real time and in virtual time: ten minutes and 13 GiB of memory", nothing, largestTakeover},
	{eventsGroup, "one event on one of 100,000 nodes, in turn with one of 10,000; in virtual time: a quarter of an hour and 8 GiB of memory", nothing, largestEvents},
	{portsGroup, "200,000 pods of 20,000 nodes request ports of a VPC at once, in turn with a tenth; in virtual time: ten minutes and 12 GiB of memory", nothing, largestPorts},
	{clientsGroup, "200,000 clients of Egresses on 20,000 nodes, in turn with a tenth; in virtual time: ten minutes and 8 GiB of memory", nothing, largestEgressClients},
	{fleetGroup, "2,000 daemons in node mode on the limits of one account: all start, a fifth is replaced, an hour of churn, an outage of EC2, at rest; in virtual time", nothing, nodeFleets},
	{kwokGroup, "operator mode with 2,000 nodes and 60,000 pods of KWOK on a real API server: an hour and 8 GiB of memory", kwokPrograms, kwokClusters},
	{amazonGroup, "the same workloads with Berth and with the Amazon VPC CNI: a quarter of an hour", comparison, compareWithAmazon},
}

// names returns the names of groups.
func names(of []group) (list []string) {
	for _, g := range of {
		list = append(list, g.name)
	}
	return list
}

// choose selects groups by name or prefix, in the order of the table.
func choose(only string) ([]group, error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return slices.Contains(onDemand, g.name) }), nil
	}
	asked := strings.Split(only, ",")
	for _, name := range asked {
		if !slices.Contains(prefixes, name) && !slices.Contains(names(groups), name) {
			return nil, fmt.Errorf("-only: unknown group %q, expected some of %s", name, strings.Join(names(groups), ", "))
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
