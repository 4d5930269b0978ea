package view

import (
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/introspect"
)

// NICs is a table of pods' interfaces that are ports of a VPC.
func NICs(list []introspect.NIC) *Grid {
	g := NewGrid("INTERFACE", "ADDRESSES", "MAC", "PORT", "PODNIC", "PLUG", "LINK", "MTU")
	for _, n := range list {
		var addresses []string
		for _, a := range n.Addresses {
			addresses = append(addresses, a.String())
		}
		g.Add(n.Interface, strings.Join(addresses, " "), n.MAC, n.Port, n.PodNIC, n.Plug, n.HostLink, strconv.Itoa(n.MTU))
	}
	return g
}

// portGrid is that table of a whole node.
func portGrid(doc introspect.Document) *Grid {
	g := NewGrid("NAMESPACE", "POD", "CONTAINER", "INTERFACE", "ADDRESSES", "PORT", "PLUG", "LINK")
	for _, n := range doc.NICs {
		var addresses []string
		for _, a := range n.Addresses {
			addresses = append(addresses, a.String())
		}
		g.Add(n.Namespace, n.Pod, Short(n.ContainerID), n.Interface, strings.Join(addresses, " "), n.Port, n.Plug, n.HostLink)
	}
	return g
}
