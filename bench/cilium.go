package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// cilium is what Cilium 1.20's allocator took for the same work, as far as it
// was measured: with its own in-memory mock of the EC2 API, on a machine like
// the one that this bench is meant for, single runs. What is not here was not
// measured.
var cilium = []struct{ figure, workload, took string }{
	{"join-100-cpu", "100 nodes join, one assign each: CPU", "0.11 s"},
	{"join-400-cpu", "400 nodes", "2.1 s"},
	{"join-1600-cpu", "1,600 nodes", "36 s"},
	{"join-1600-allocated", "1,600 nodes: memory allocated", "7 GB"},
	{"event-100-cpu", "one event among 100 nodes: CPU", "5 ms"},
	{"event-1600-cpu", "among 1,600 nodes", "78 ms"},
	{"event-1600-allocated", "among 1,600 nodes: memory allocated", "17 MB"},
	{"fill-nodes-spread", "100 nodes, one new ENI each, joining one by one: last node", "70 s (bound 70 s)"},
	{"fill-nodes", "the same, joining all at once: last node", "119 s (bound 70 s)"},
	{"fill-subnets", "100 nodes, 11 addresses each, 3 subnets of 400: last node", "188 s"},
	{"fill-subnets-failed-creates", "failed creates meanwhile", "84"},
	{"throttled-create", "one throttled create: delay of that node", "3-8 s"},
	{"throttled-assign-enis", "one throttled assign: ENIs made for it", "1"},
}

// beside prints the results beside Cilium's.
func beside(w io.Writer, results []Result) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	title := "\nbeside Cilium 1.20's allocator, measured elsewhere, single runs\nworkload\tCilium\tBerth\t"
	for _, row := range cilium {
		r, ok := find(results, row.figure)
		if !ok {
			continue
		}
		if title != "" {
			fmt.Fprintln(tw, title)
			title = ""
		}
		least := ""
		if r.Reference != 0 {
			least = fmt.Sprintf(" (%s: %.3g %s)", against(row.figure), r.Reference, r.Unit)
		}
		fmt.Fprintf(tw, "%s\t%s\t%.3g %s%s\t\n", row.workload, row.took, r.Value, r.Unit, least)
	}
	_ = tw.Flush()
}

// against names the reference of a figure.
func against(name string) string {
	i := slices.IndexFunc(budgets, func(f figure) bool { return f.name == name })
	if i < 0 {
		return "against"
	}
	return budgets[i].against
}
