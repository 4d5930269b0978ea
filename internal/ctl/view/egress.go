package view

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Tunnels returns a table of the tunnels to gateways that a node has set up for a pod.
func Tunnels(e introspect.Egress) *Grid {
	g := NewGrid("EGRESS", "DESTINATIONS", "TUNNEL TO", "NEW CONNECTIONS", "ID")
	for _, u := range e.Egresses {
		name := u.Namespace + "/" + u.Name
		if len(u.Service) > 0 {
			g.Add(name, spaced(u.Destinations), "Service "+addresses(u.Service), "yes", "")
		}
		for _, w := range u.Gateways {
			takes := "no"
			switch {
			case w.Ending:
				takes = "no: draining"
			case w.Chosen:
				takes = "yes"
			}
			g.Add(name, spaced(u.Destinations), addresses(w.Addresses), takes, strconv.Itoa(w.ID))
		}
		if len(u.Service)+len(u.Gateways) == 0 {
			g.Add(name, spaced(u.Destinations), "", "no: no gateway", "")
			g.Tint(3, Bad)
		}
	}
	return g
}

func addresses(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}
