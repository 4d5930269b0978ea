package ctl

import (
	"fmt"
	"io"
	"slices"
	"strconv"
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
	p := &printer{w: w}
	p.printf("Node %s\n%s\n", nodeName(doc), totals(doc))
	p.section("Allocated", allocatedGrid(doc), "No pod holds an address.")
	p.section("Available", availableGrid(doc), "No address is available.")
	p.section("Cooling", coolingGrid(doc), "No address is cooling.")
	p.supply(doc)
	p.trouble(doc)
	return p.err
}

// ofPools tells whether the node's addresses are of pools.
func ofPools(doc introspect.Document) bool {
	return doc.IPAM == "pool" || len(doc.Pools)+len(doc.Blocks) > 0
}

// nodeName names the node, and the instance if that is something else.
func nodeName(doc introspect.Document) string {
	if ofPools(doc) && doc.InstanceID == doc.Node {
		return orDash(doc.Node)
	}
	return fmt.Sprintf("%s (%s)", orDash(doc.Node), orDash(doc.InstanceID))
}

func totals(doc introspect.Document) string {
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
	if ofPools(doc) {
		s += fmt.Sprintf("; the node's blocks hold %d", t.Capacity)
	} else {
		s += fmt.Sprintf("; the attached ENIs hold %d at most", t.Capacity)
	}
	if t.Waiting > 0 {
		s += fmt.Sprintf("; %s waiting for an address", count(t.Waiting, "pod"))
	}
	return s
}

func allocatedGrid(doc introspect.Document) grid {
	dual, pools := false, ofPools(doc)
	for _, a := range doc.Allocated {
		dual = dual || a.IPv6.IsValid()
	}
	head := []string{"ADDRESS"}
	if dual {
		head = append(head, "IPV6")
	}
	head = append(head, "NAMESPACE", "POD", "CONTAINER", "INTERFACE")
	if pools {
		head = append(head, "POOL", "BLOCK")
	} else {
		head = append(head, "ENI", "INDEX")
	}
	g := grid{append(head, "SINCE")}
	for _, a := range doc.Allocated {
		row := []string{a.Address.String()}
		if dual {
			row = append(row, text(a.IPv6))
		}
		row = append(row, a.Namespace, a.Pod, short(a.ContainerID), a.Interface)
		if pools {
			row = append(row, a.Pool, a.Block)
		} else {
			row = append(row, a.ENI, strconv.Itoa(a.DeviceIndex))
		}
		g.add(append(row, age(a.Since, doc.Time))...)
	}
	return g
}

func availableGrid(doc introspect.Document) grid {
	if ofPools(doc) {
		g := grid{{"ADDRESS", "POOL", "BLOCK"}}
		for _, a := range doc.Available {
			g.add(a.Address.String(), a.Pool, a.Block)
		}
		return g
	}
	g := grid{{"ADDRESS", "ENI", "PREFIX"}}
	for _, a := range doc.Available {
		g.add(a.Address.String(), a.ENI, text(a.Prefix))
	}
	return g
}

func coolingGrid(doc introspect.Document) grid {
	from := []string{"ENI"}
	if ofPools(doc) {
		from = []string{"POOL", "BLOCK"}
	}
	g := grid{slices.Concat([]string{"ADDRESS"}, from, []string{"RELEASED", "REMAINING"})}
	for _, c := range doc.Cooling {
		from := []string{c.ENI}
		if ofPools(doc) {
			from = []string{c.Pool, c.Block}
		}
		left := time.Duration(c.RemainingSeconds * float64(time.Second))
		g.add(slices.Concat([]string{c.Address.String()}, from, []string{age(c.Since, doc.Time), left.Round(time.Second).String()})...)
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
func (p *printer) trouble(doc introspect.Document) {
	for _, c := range doc.Conditions {
		if c.Status != introspect.True {
			p.printf("\n! %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	p.lastTrouble(doc)
}

func (p *printer) lastTrouble(doc introspect.Document) {
	switch {
	case doc.LastError == "":
	case ofPools(doc):
		p.printf("\n! last trouble with blocks: %s\n", doc.LastError)
	default:
		p.printf("\n! last trouble with the cloud: %s\n", doc.LastError)
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
