package view

import (
	"fmt"
	"strconv"

	"github.com/berthnet/berth/internal/node/introspect"
)

// supply holds the parts of a node's views that depend on where its addresses come from.
type supply struct {
	instances bool   // nodes are EC2 instances
	capacity  string // format of Totals.Capacity
	authority string // the source of LastError

	// The columns that name the ENI or block of an address.
	allocated columns[introspect.Allocated]
	available columns[introspect.Available]
	cooling   columns[introspect.Cooling]

	besides func(*Printer, introspect.Document) // printed by `ip-manager` after the addresses; nil: nothing
	status  func(*Printer, introspect.Document) // printed by `status`; nil: nothing
}

// columns are adjacent columns of a table.
type columns[T any] struct {
	head  []string
	cells func(T) []any
}

func supplyOf(doc introspect.Document) supply {
	switch doc.IPAM {
	case "port":
		return ofPorts
	case "none":
		return ofOthers
	}
	if doc.IPAM == "pool" || len(doc.Pools)+len(doc.Blocks) > 0 {
		return ofPools
	}
	return ofENIs
}

var ofENIs = supply{
	instances: true,
	capacity:  "; the attached ENIs hold %d at most",
	authority: "the cloud",
	allocated: columns[introspect.Allocated]{[]string{"ENI", "INDEX"}, func(a introspect.Allocated) []any { return []any{a.ENI, a.DeviceIndex} }},
	available: columns[introspect.Available]{[]string{"ENI", "PREFIX"}, func(a introspect.Available) []any { return []any{a.ENI, Text(a.Prefix)} }},
	cooling:   columns[introspect.Cooling]{[]string{"ENI"}, func(c introspect.Cooling) []any { return []any{c.ENI} }},
	status: func(p *Printer, doc introspect.Document) {
		if doc.Template != "" {
			p.Printf("New ENIs follow %s.\n", doc.Template)
		}
		p.Section("ENIs", eniGrid(doc.ENIs), "No ENI is known.")
	},
}

var ofPools = supply{
	capacity:  "; the node's blocks hold %d",
	authority: "blocks",
	allocated: columns[introspect.Allocated]{blockColumns, func(a introspect.Allocated) []any { return []any{a.Pool, a.Block} }},
	available: columns[introspect.Available]{blockColumns, func(a introspect.Available) []any { return []any{a.Pool, a.Block} }},
	cooling:   columns[introspect.Cooling]{blockColumns, func(c introspect.Cooling) []any { return []any{c.Pool, c.Block} }},
	besides:   poolsAndBlocks,
	status:    poolsAndBlocks,
}

// ofPorts is for nodes whose pods have NICs in VPCs only.
var ofPorts = supply{
	authority: "ports of VPCs",
	status:    ports,
}

// ofOthers is for nodes where another network assigns the addresses of pods.
var ofOthers = supply{
	authority: "the network",
}

func ports(p *Printer, doc introspect.Document) {
	p.Section("Ports of VPCs", portGrid(doc), "No pod has a NIC.")
}

var blockColumns = []string{"POOL", "BLOCK"}

// NodeName returns the name of the node and, if it differs, the instance ID.
func NodeName(doc introspect.Document) string {
	if from := supplyOf(doc); !from.instances && doc.InstanceID == doc.Node {
		return orDash(doc.Node)
	}
	return fmt.Sprintf("%s (%s)", orDash(doc.Node), orDash(doc.InstanceID))
}

func poolsAndBlocks(p *Printer, doc introspect.Document) {
	p.Section("Pools", poolGrid(doc.Pools), "No pod of this node uses a pool.")
	p.Section("Blocks", blockGrid(doc.Blocks), "This node has no block.")
}

func poolGrid(pools []introspect.Pool) *Grid {
	return GridOf(pools, func(p introspect.Pool) []any {
		blocks, requests := strconv.Itoa(p.Blocks), strconv.Itoa(p.Requests)
		if p.Draining > 0 {
			blocks += fmt.Sprintf(" (%d draining)", p.Draining)
		}
		if p.Failed != "" {
			requests += " (" + p.Failed + ")"
		}
		return []any{p.Name, blocks, p.Used, p.Cooling, p.Free, p.Waiting, requests}
	}, "POOL", "BLOCKS", "USED", "COOLING", "FREE", "WAITING", "REQUESTS")
}

func blockGrid(blocks []introspect.Block) *Grid {
	return GridOf(blocks, func(b introspect.Block) []any {
		return []any{b.Name, b.Pool, Spaced(b.Prefixes), b.Used, b.Cooling, b.Free, YesOrWhy(b.Ready, b.Reason)}
	}, "BLOCK", "POOL", "PREFIXES", "USED", "COOLING", "FREE", "READY")
}

func eniGrid(enis []introspect.ENI) *Grid {
	return GridOf(enis, func(e introspect.ENI) []any {
		primary := ""
		if e.Primary {
			primary = "yes"
		}
		return []any{e.ID, e.DeviceIndex, primary, e.Subnet, e.MAC, e.Used, e.Capacity, e.Prefixes, YesOrWhy(e.Ready, e.Reason)}
	}, "ENI", "INDEX", "PRIMARY", "SUBNET", "MAC", "USED", "CAPACITY", "PREFIXES", "READY")
}

// portGrid returns a table of all interfaces on a node that are ports of a VPC.
func portGrid(doc introspect.Document) *Grid {
	return GridOf(doc.NICs, func(n introspect.NIC) []any {
		return []any{n.Namespace, n.Pod, Short(n.ContainerID), n.Interface, Spaced(n.Addresses), n.Port, n.Plug, n.HostLink}
	}, "NAMESPACE", "POD", "CONTAINER", "INTERFACE", "ADDRESSES", "PORT", "PLUG", "LINK")
}

// YesOrWhy returns the cell of a state: yes, or why not.
func YesOrWhy(yes bool, why string) string {
	if yes {
		return "yes"
	}
	return "no: " + why
}
