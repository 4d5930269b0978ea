package plancmd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/planner"
)

// row is a line of the table that has a column for each alternative.
type row struct {
	name string
	of   func(planner.Totals) string
}

var rows = []row{
	{"addresses held, peak", func(t planner.Totals) string { return strconv.Itoa(t.PeakHeld) }},
	{"addresses held, at the end", func(t planner.Totals) string { return strconv.Itoa(t.EndHeld) }},
	{"idle addresses, mean", func(t planner.Totals) string { return fmt.Sprintf("%.1f", t.MeanIdle) }},
	{"idle addresses, peak", func(t planner.Totals) string { return strconv.Itoa(t.PeakIdle) }},
	{"idle address-hours", func(t planner.Totals) string { return fmt.Sprintf("%.0f", t.IdleHours) }},
	{"least free in a subnet", func(t planner.Totals) string { return strconv.Itoa(t.LeastFree) }},
	{"ENIs, peak", func(t planner.Totals) string { return strconv.Itoa(t.PeakENIs) }},
	{"EC2 calls", func(t planner.Totals) string { return strconv.Itoa(t.Calls) }},
	{"  throttled", func(t planner.Totals) string { return strconv.Itoa(t.Throttled) }},
	{"  refused otherwise", func(t planner.Totals) string { return strconv.Itoa(t.Refused) }},
	{"pods started", func(t planner.Totals) string { return strconv.Itoa(t.Pods) }},
	{"  that waited", func(t planner.Totals) string { return strconv.Itoa(t.Waited) }},
	{"  wait, p50", func(t planner.Totals) string { return seconds(t.Wait.P50) }},
	{"  wait, p99", func(t planner.Totals) string { return seconds(t.Wait.P99) }},
	{"  wait, longest", func(t planner.Totals) string { return seconds(t.Wait.Max) }},
	{"  without an address at the end", func(t planner.Totals) string { return strconv.Itoa(t.Waiting) }},
	{"  without a node at the end", func(t planner.Totals) string { return strconv.Itoa(t.Pending) }},
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}

// print prints a result: a table of all alternatives, and what happened in each.
func show(p *view.Printer, r *planner.Result) {
	if r.Name != "" {
		p.Printf("%s, %v\n", r.Name, r.Duration.Std().String())
	}
	head := []string{"RESULT"}
	for _, a := range r.Alternatives {
		head = append(head, strings.ToUpper(a.Name))
	}
	grid := view.NewGrid(head...)
	for _, l := range rows {
		cells := []any{l.name}
		for _, a := range r.Alternatives {
			cells = append(cells, l.of(a.Totals))
		}
		grid.Add(cells...)
	}
	p.Table(grid, "")
	for _, a := range r.Alternatives {
		p.Printf("\n%s\n", a.Name)
		if a.Stopped != "" {
			p.Printf("  stopped early: %s\n", a.Stopped)
		}
		for _, e := range a.Events {
			p.Printf("  %9s  %s", e.At.Std().Round(time.Second).String(), e.Text)
			if e.For > 0 {
				p.Printf(" (for %v, up to %d pods)", e.For.Std().Round(time.Second).String(), e.Pods)
			}
			p.Printf("\n")
		}
	}
}
