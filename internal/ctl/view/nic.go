package view

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/node/introspect"
)

// NICs returns a table of the interfaces of one pod that are ports of a VPC.
func NICs(list []introspect.NIC) *Grid {
	g := NewGrid("INTERFACE", "ADDRESSES", "MAC", "PORT", "PODNIC", "PLUG", "LINK", "MTU")
	for _, n := range list {
		g.Add(n.Interface, spaced(n.Addresses), n.MAC, n.Port, n.PodNIC, n.Plug, n.HostLink, strconv.Itoa(n.MTU))
	}
	return g
}

// portGrid returns a table of all interfaces on a node that are ports of a VPC.
func portGrid(doc introspect.Document) *Grid {
	g := NewGrid("NAMESPACE", "POD", "CONTAINER", "INTERFACE", "ADDRESSES", "PORT", "PLUG", "LINK")
	for _, n := range doc.NICs {
		g.Add(n.Namespace, n.Pod, Short(n.ContainerID), n.Interface, spaced(n.Addresses), n.Port, n.Plug, n.HostLink)
	}
	return g
}

func spaced(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return strings.Join(out, " ")
}
