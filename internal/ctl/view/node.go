package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Addresses prints the document's addresses by state, and the NICs of pods.
func Addresses(p *Printer, doc introspect.Document) {
	switch doc.IPAM {
	case "port":
		ports(p, doc)
		return
	case "none":
		return
	}
	from := supplyOf(doc)
	p.Section("Allocated", allocatedGrid(doc, from), "No pod holds an address.")
	p.Section("Available", availableGrid(doc, from), "No address is available.")
	p.Section("Cooling", coolingGrid(doc, from), "No address is cooling.")
	if len(doc.NICs) > 0 {
		ports(p, doc)
	}
}

// Node prints the output of `berthctl ip-manager`.
func Node(p *Printer, doc introspect.Document) {
	p.Printf("Node %s\n%s\n", NodeName(doc), Totals(doc))
	Addresses(p, doc)
	if besides := supplyOf(doc).besides; besides != nil {
		besides(p, doc)
	}
	for _, c := range doc.Conditions {
		if c.Status != introspect.True {
			p.Printf("\n! %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	LastTrouble(p, doc)
}

// Supply prints the document's ENIs, or its pools and blocks.
func Supply(p *Printer, doc introspect.Document) {
	if status := supplyOf(doc).status; status != nil {
		status(p, doc)
	}
}

// Conditions prints conditions under a title, with their age at now.
func Conditions(p *Printer, title string, list []introspect.Condition, now time.Time) {
	g := NewGrid("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
	for _, c := range list {
		g.Add(c.Type, c.Status, Age(c.Since, now), c.Reason, c.Message)
		if c.Status != introspect.True {
			g.Tint(1, Bad)
		}
	}
	p.Section(title, g, "No condition is known.")
}

// LastTrouble prints the document's last error, if any.
func LastTrouble(p *Printer, doc introspect.Document) {
	if doc.LastError != "" {
		p.Printf("\n! last error of %s: %s\n", supplyOf(doc).authority, doc.LastError)
	}
}

// Totals returns the document's totals as one line.
func Totals(doc introspect.Document) string {
	t := doc.Totals
	switch doc.IPAM {
	case "port":
		return Count(len(doc.NICs), "NIC")
	case "none":
		return "another network assigns the addresses of pods; Berth provides egress"
	}
	s := fmt.Sprintf("%d allocated, %d available, %d cooling", t.Allocated, t.Available, t.Cooling)
	for _, more := range []struct {
		n    int
		what string
	}{{t.NotReady, "not ready"}, {t.Withdrawn, "being released"}} {
		if more.n > 0 {
			s += fmt.Sprintf(", %d %s", more.n, more.what)
		}
	}
	s += fmt.Sprintf(supplyOf(doc).capacity, t.Capacity)
	if t.Waiting > 0 {
		s += fmt.Sprintf("; %s waiting for an address", Count(t.Waiting, "pod"))
	}
	return s
}

func allocatedGrid(doc introspect.Document, from supply) *Grid {
	first, dual := []string{"ADDRESS"}, slices.ContainsFunc(doc.Allocated, func(a introspect.Allocated) bool { return a.IPv6.IsValid() })
	if dual {
		first = append(first, "IPV6")
	}
	return GridOf(doc.Allocated, func(a introspect.Allocated) []any {
		row := []any{a.Address}
		if dual {
			row = append(row, Text(a.IPv6))
		}
		row = append(row, a.Namespace, a.Pod, Short(a.ContainerID), a.Interface)
		return slices.Concat(row, from.allocated.cells(a), []any{Age(a.Since, doc.Time)})
	}, slices.Concat(first, []string{"NAMESPACE", "POD", "CONTAINER", "INTERFACE"}, from.allocated.head, []string{"SINCE"})...)
}

func availableGrid(doc introspect.Document, from supply) *Grid {
	return GridOf(doc.Available, func(a introspect.Available) []any {
		return append([]any{a.Address}, from.available.cells(a)...)
	}, append([]string{"ADDRESS"}, from.available.head...)...)
}

func coolingGrid(doc introspect.Document, from supply) *Grid {
	return GridOf(doc.Cooling, func(c introspect.Cooling) []any {
		left := time.Duration(c.RemainingSeconds * float64(time.Second))
		return slices.Concat([]any{c.Address}, from.cooling.cells(c), []any{Age(c.Since, doc.Time), left.Round(time.Second)})
	}, slices.Concat([]string{"ADDRESS"}, from.cooling.head, []string{"RELEASED", "REMAINING"})...)
}

// Short truncates a container ID to the length that crictl prints.
func Short(id string) string { return id[:min(len(id), 13)] }

// Text returns v.String(), or "" for the zero value.
func Text[T interface {
	comparable
	fmt.Stringer
}](v T) string {
	var zero T
	if v == zero {
		return ""
	}
	return v.String()
}

// NICs returns a table of the interfaces of one pod that are ports of a VPC.
func NICs(list []introspect.NIC) *Grid {
	return GridOf(list, func(n introspect.NIC) []any {
		return []any{n.Interface, Spaced(n.Addresses), n.MAC, n.Port, n.PodNIC, n.Plug, n.HostLink, n.MTU}
	}, "INTERFACE", "ADDRESSES", "MAC", "PORT", "PODNIC", "PLUG", "LINK", "MTU")
}

// Spaced joins the texts of values with spaces.
func Spaced[T fmt.Stringer](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, " ")
}

// Tunnels returns a table of the tunnels to gateways that a node has set up for a pod.
func Tunnels(e introspect.Egress) *Grid {
	g := NewGrid("EGRESS", "DESTINATIONS", "TUNNEL TO", "NEW CONNECTIONS", "ID")
	for _, u := range e.Egresses {
		name, destinations := u.Namespace+"/"+u.Name, Spaced(u.Destinations)
		if len(u.Service) > 0 {
			g.Add(name, destinations, "Service "+Spaced(u.Service), "yes", "")
		}
		for _, w := range u.Gateways {
			takes := "no"
			switch {
			case w.Ending:
				takes = "no: draining"
			case w.Chosen:
				takes = "yes"
			}
			g.Add(name, destinations, Spaced(w.Addresses), takes, w.ID)
		}
		if len(u.Service)+len(u.Gateways) == 0 {
			g.Add(name, destinations, "", "no: no gateway", "")
			g.Tint(3, Bad)
		}
	}
	return g
}
