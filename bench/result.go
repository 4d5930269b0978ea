package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is one figure of the bench, as it stands in results.json.
type Result struct {
	Name      string  `json:"name"`
	Value     float64 `json:"value"`
	Reference float64 `json:"reference"` // 0 where the value itself has the budget
	Ratio     float64 `json:"ratio"`     // value over reference; 0 without one
	Unit      string  `json:"unit"`
	Runs      int     `json:"runs"` // measurements behind each median
}

// budget is what docs/design.md, "Budgets", allows: the ratio, or without a
// reference the value, at most or at least limit.
type budget struct {
	limit   float64
	atLeast bool
	against string // what the reference is, for the table
}

// figure is one that the bench knows.
type figure struct {
	name string
	budget
}

// budgets are the figures that have one, in the order of the report. All others
// are reported only.
var budgets = []figure{
	{"daemon-add", budget{1.5, false, "its netlink calls, bare"}},
	{"exec-add", budget{0.6, false, "ptp + host-local"}},
	// A goal, not reached yet.
	{"exec-add-floor", budget{1.25, false, "a plugin that does nothing, and bare netlink calls"}},
	{"exec-del", budget{0.5, false, "ptp + host-local"}},
	{"add-500-pods", budget{1.2, false, "10 pods"}},
	{"parallel-add", budget{1.2, true, "one at a time"}},
	{"pool-daemon-add", budget{1.5, false, "its netlink calls, bare"}},
	{"pool-exec-add", budget{0.6, false, "ptp + host-local"}},
	{"pool-exec-del", budget{0.5, false, "ptp + host-local"}},
	{"pods-ready", budget{1.05, false, "ptp + host-local"}},
	{"burst-ready", budget{1.05, false, "ptp + host-local"}},
	{"packets-250-pods", budget{0.95, true, "10 pods"}},
	{"dual-stack-add", budget{1.3, false, "IPv4 only"}},
	{"ipv6-add", budget{1.1, false, "IPv4 only"}},
	{"plugin-size", budget{12, false, ""}},
	{"daemon-idle", budget{40, false, ""}},
	{"daemon-250-pods", budget{60, false, ""}},

	{"join-1600-cpu", budget{2, false, ""}},
	{"join-growth", budget{2, false, "400 nodes instead of 10,000"}}, // linear but for the noise of short runs; quadratic is 25
	{"operator-event", budget{1.5, false, "100 nodes instead of 2,000"}},
	{"operator-event-cpu", budget{1, false, ""}},
	{"fill-nodes", budget{1.1, false, "what EC2's limits force"}},
	{"fill-median", budget{0.6, false, "that bound for the last node"}},
	{"fill-exposed", budget{150, false, ""}},
	{"fill-nodes-spread", budget{1.1, false, "what EC2's limits force"}},
	{"fill-subnets", budget{1.1, false, "what EC2's limits force"}},
	{"fill-subnets-failed-creates", budget{0, false, ""}},
	{"throttled-create", budget{1.1, false, "the limiter's wait and the refused call"}},
	{"throttled-assign-enis", budget{0, false, ""}},
	{"throttled-once-median", budget{2, false, "no throttled call"}},
	{"refused-1", budget{0.8, true, "99 % of those without refusals"}},
	{"refused-2", budget{0.8, true, "98 % of those"}},
	{"refused-5", budget{0.8, true, "95 % of those"}},
	{"refused-10", budget{0.8, true, "90 % of those"}},
	{"foreign-client-4", budget{1.5, false, "a share in proportion to the calls"}},
	{"foreign-client-5-5", budget{1.5, false, "a share in proportion to the calls"}},
	{"foreign-client-8", budget{1.5, false, "a share in proportion to the calls"}},
	{"peers-foreign-4", budget{1.5, false, "a share in proportion to the calls"}},
	{"peers-foreign-5-5", budget{1.5, false, "a share in proportion to the calls"}},
	{"peers-foreign-8", budget{1.5, false, "a share in proportion to the calls"}},
	{"peers-refused-1", budget{1.25, false, "none refused, at 99 % of the rate"}},
	{"peers-refused-5", budget{1.25, false, "none refused, at 95 % of the rate"}},
	{"peers-refused-10", budget{1.25, false, "none refused, at 90 % of the rate"}},
	{"operator-memory-2000", budget{300, false, ""}},
	{"operator-memory-10000", budget{1024, false, ""}},

	{"pool-requests-writes", budget{1, false, "a creation and an answer"}},
	{"pool-requests-cpu", budget{1.3, false, "1,000 requests instead of 5,000"}}, // linear but for noise
	{"pool-carve", budget{1.5, false, "1,000 blocks taken instead of 1,000,000"}},

	{"ports-2000-bound", budget{1.15, false, "what the VPC's API forces"}},
	{"ports-2000-active", budget{1.5, false, "that, what a node takes, and one look"}},
	{"ports-2000-each", budget{0.1, false, eachPort}},
	{"ports-2000-calls", budget{0.05, false, eachPort}},
	{"ports-2000-writes", budget{1.05, false, "made, bound, active"}},
	{"ports-2000-memory", budget{16, false, ""}},
	{"ports-2000-scheduled-bound", budget{1.15, false, "the last pod's node, and a call"}},
	{"ports-2000-scheduled-calls", budget{0.4, false, eachPort}},
	{"ports-2000-late-bound", budget{1.15, false, "what the VPC's API forces"}},
	{"egress-throughput", budget{0.8, true, withoutTunnel}},
	{"egress-add", budget{1.6, false, "no Egress"}},
	{"branch-burst", budget{1.15, false, "what EC2's limits force"}},
	{"branch-add", budget{1.5, false, "a warm address of an ENI"}},
	{"egress-client-cpu", budget{1.3, false, fewerPods}},
	{"egress-other-pod-cpu", budget{2, false, fewerPods}}, // so little that noise is half of it
	{"egress-client-told", budget{100, false, ""}},
	{"egress-gateway-objects", budget{0.001, false, "all pods"}},
	{"egress-gateway-bytes", budget{1.2, false, fewerPods}},
	{"egress-clients-memory", budget{6, false, ""}},
	{"port-add", budget{1.1, false, byVsctl}},
	{"port-add-4", budget{0.75, false, byVsctl}},
	{"port-daemon-idle", budget{40, false, ""}},

	{"vpc-cni-30-adds", budget{1, false, amazon}},
	{"vpc-cni-burst", budget{1, false, amazon}},
	{"vpc-cni-burst-failed", budget{0, false, amazon}},
	{"vpc-cni-cold-calls", budget{1, false, amazon}},
	{"vpc-cni-cold-pod", budget{1, false, amazon}},
	{"vpc-cni-five-first", budget{1, false, amazon}},
	{"vpc-cni-five-warm", budget{1, false, amazon}},
	{"vpc-cni-five-each-first", budget{1, false, amazon}},
	{"vpc-cni-outage", budget{1, false, amazon}},
	{"vpc-cni-surplus-30s", budget{1, false, amazon}},
	{"vpc-cni-lost-attach", budget{1, false, amazon}},
}

const (
	amazon   = "the Amazon VPC CNI"
	byVsctl  = "a plugin that executes ovs-vsctl"
	eachPort = "a call that makes each port, and one that looks"

	withoutTunnel = "the same hops without a tunnel"

	fewerPods = "a tenth of pods, clients and Egresses"
)

// series are measurements by what they are of.
type series map[string][]float64

// note keeps a measurement of a round.
type note func(of string, value float64)

// rounds does something so often, after some rounds that do not count, and returns
// what each of the others noted.
func rounds(n int, round func(i int, note note) error) (series, error) {
	all := series{}
	for i := range n + warmUp {
		err := round(i, func(of string, value float64) {
			if i >= warmUp {
				all[of] = append(all[of], value)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ratio makes a Result of two sets of measurements taken in turn.
func ratio(name, unit string, value, reference []float64) Result {
	v, r := median(value), median(reference)
	return Result{Name: name, Value: v, Reference: r, Ratio: v / r, Unit: unit, Runs: len(value)}
}

// measured makes a Result of values without a reference.
func measured(name, unit string, values ...float64) Result {
	return Result{Name: name, Value: median(values), Unit: unit, Runs: len(values)}
}

// single makes a Result of one measurement, against a reference if that is not 0.
func single(name, unit string, value, reference float64) Result {
	r := Result{Name: name, Value: value, Reference: reference, Unit: unit, Runs: 1}
	if reference != 0 {
		r.Ratio = value / reference
	}
	return r
}

// median of at least one measurement; that of an even number is the lower of
// the two in the middle, so that it is always one that was seen.
func median(xs []float64) float64 {
	s := slices.Clone(xs)
	slices.Sort(s)
	return s[(len(s)-1)/2]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// met tells whether a result keeps its budget.
func (b budget) met(r Result) bool {
	got := r.Ratio
	if r.Reference == 0 {
		got = r.Value
	}
	if b.atLeast {
		return got >= b.limit
	}
	return got <= b.limit
}

// report prints the results as a table, those with a budget first, and tells
// how many miss theirs.
func report(w io.Writer, results []Result) (missed int) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "figure\tmedian\treference\tagainst\tratio\tbudget\truns\t")
	known := map[string]bool{}
	for _, row := range budgets {
		known[row.name] = true
		r, ok := find(results, row.name)
		if !ok {
			continue
		}
		word, sign := "kept", "≤"
		if row.atLeast {
			sign = "≥"
		}
		if !row.met(r) {
			word = "MISSED"
			missed++
		}
		line(tw, r, row.against, fmt.Sprintf("%s %g", sign, row.limit), word)
	}
	for _, r := range results {
		if !known[r.Name] {
			line(tw, r, "", "none", "reported only")
		}
	}
	_ = tw.Flush()
	return missed
}

func find(results []Result, name string) (Result, bool) {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Name == name })
	if i < 0 {
		return Result{}, false
	}
	return results[i], true
}

// line prints one result.
func line(w io.Writer, r Result, against, budget, word string) {
	ref, rat := "", ""
	if r.Reference != 0 {
		ref, rat = fmt.Sprintf("%.2f %s", r.Reference, r.Unit), fmt.Sprintf("%.2f", r.Ratio)
	}
	fmt.Fprintf(w, "%s\t%.2f %s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Name, r.Value, r.Unit, ref, against, rat, budget, r.Runs, word)
}

// besides are the results of a file, those that were measured now in place of
// the earlier ones of their names. No file is no results.
func besides(path string, measured []Result) ([]Result, error) {
	all, err := read(path)
	if errors.Is(err, os.ErrNotExist) {
		return measured, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range measured {
		i := slices.IndexFunc(all, func(old Result) bool { return old.Name == r.Name })
		if i < 0 {
			all = append(all, r)
		} else {
			all[i] = r
		}
	}
	return all, nil
}

// read reads the results in a file.
func read(path string) ([]Result, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var all []Result
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read results in %s: %w", path, err)
	}
	return all, nil
}

// write puts the results into a file as a JSON list.
func write(path string, results []Result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the results' directory: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
