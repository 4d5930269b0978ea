package ctl

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/introspect"
)

func newIPManager() *cobra.Command {
	var n node
	var out format
	cmd := &cobra.Command{
		Use:   "ip-manager",
		Short: "Show this node's addresses and the pods that hold them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := n.document(cmd.Context())
			if err != nil {
				return err
			}
			if out == jsonFmt {
				return writeJSON(cmd.OutOrStdout(), doc)
			}
			return writeAddresses(cmd.OutOrStdout(), doc)
		},
	}
	n.register(cmd)
	out.register(cmd)
	return cmd
}

// writeAddresses prints the document's addresses, by state.
func writeAddresses(w io.Writer, doc introspect.Document) error {
	p, from := &printer{w: w}, supplyOf(doc)
	p.printf("Node %s\n%s\n", nodeName(doc, from), totals(doc, from))
	p.section("Allocated", allocatedGrid(doc, from), "No pod holds an address.")
	p.section("Available", availableGrid(doc, from), "No address is available.")
	p.section("Cooling", coolingGrid(doc, from), "No address is cooling.")
	from.besides(p, doc)
	p.trouble(doc, from)
	return p.err
}

func totals(doc introspect.Document, from supply) string {
	t := doc.Totals
	s := fmt.Sprintf("%d allocated, %d available, %d cooling", t.Allocated, t.Available, t.Cooling)
	for _, more := range []struct {
		n    int
		what string
	}{{t.NotReady, "not ready"}, {t.Withdrawn, "on their way back"}} {
		if more.n > 0 {
			s += fmt.Sprintf(", %d %s", more.n, more.what)
		}
	}
	s += fmt.Sprintf(from.capacity, t.Capacity)
	if t.Waiting > 0 {
		s += fmt.Sprintf("; %s waiting for an address", count(t.Waiting, "pod"))
	}
	return s
}

func allocatedGrid(doc introspect.Document, from supply) grid {
	first, dual := []string{"ADDRESS"}, slices.ContainsFunc(doc.Allocated, func(a introspect.Allocated) bool { return a.IPv6.IsValid() })
	if dual {
		first = append(first, "IPV6")
	}
	g := grid{slices.Concat(first, []string{"NAMESPACE", "POD", "CONTAINER", "INTERFACE"}, from.allocated.head, []string{"SINCE"})}
	for _, a := range doc.Allocated {
		row := []string{a.Address.String()}
		if dual {
			row = append(row, text(a.IPv6))
		}
		row = append(row, a.Namespace, a.Pod, short(a.ContainerID), a.Interface)
		g.add(slices.Concat(row, from.allocated.cells(a), []string{age(a.Since, doc.Time)})...)
	}
	return g
}

func availableGrid(doc introspect.Document, from supply) grid {
	g := grid{append([]string{"ADDRESS"}, from.available.head...)}
	for _, a := range doc.Available {
		g.add(append([]string{a.Address.String()}, from.available.cells(a)...)...)
	}
	return g
}

func coolingGrid(doc introspect.Document, from supply) grid {
	g := grid{slices.Concat([]string{"ADDRESS"}, from.cooling.head, []string{"RELEASED", "REMAINING"})}
	for _, c := range doc.Cooling {
		left := time.Duration(c.RemainingSeconds * float64(time.Second))
		g.add(slices.Concat([]string{c.Address.String()}, from.cooling.cells(c), []string{age(c.Since, doc.Time), left.Round(time.Second).String()})...)
	}
	return g
}

// printer prints sections until writing fails.
type printer struct {
	w   io.Writer
	err error
}

// printf prints what is in the arguments on one line each.
func (p *printer) printf(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = printable(s)
		}
	}
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) section(title string, g grid, empty string) {
	p.printf("\n%s\n", title)
	if p.err == nil {
		p.err = g.write(p.w, empty)
	}
}

// trouble prints what a person should know of, if anything.
func (p *printer) trouble(doc introspect.Document, from supply) {
	for _, c := range doc.Conditions {
		if c.Status != introspect.True {
			p.printf("\n! %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	p.lastTrouble(doc, from)
}

func (p *printer) lastTrouble(doc introspect.Document, from supply) {
	if doc.LastError != "" {
		p.printf("\n! last trouble with %s: %s\n", from.authority, doc.LastError)
	}
}

// short is a container's ID as runtimes' tools print it.
func short(id string) string { return id[:min(len(id), 13)] }

// text is a value's text, empty for its zero value.
func text[T interface {
	comparable
	fmt.Stringer
}](v T) string {
	var zero T
	if v == zero {
		return ""
	}
	return v.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
