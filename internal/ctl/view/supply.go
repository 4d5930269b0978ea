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

	besides func(*Printer, introspect.Document) // printed by `ip-manager` after the addresses
	status  func(*Printer, introspect.Document) // printed by `status`
}

// columns are adjacent columns of a table.
type columns[T any] struct {
	head  []string
	cells func(T) []string
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
	allocated: columns[introspect.Allocated]{[]string{"ENI", "INDEX"}, func(a introspect.Allocated) []string { return []string{a.ENI, strconv.Itoa(a.DeviceIndex)} }},
	available: columns[introspect.Available]{[]string{"ENI", "PREFIX"}, func(a introspect.Available) []string { return []string{a.ENI, text(a.Prefix)} }},
	cooling:   columns[introspect.Cooling]{[]string{"ENI"}, func(c introspect.Cooling) []string { return []string{c.ENI} }},
	besides:   func(*Printer, introspect.Document) {},
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
	allocated: columns[introspect.Allocated]{blockColumns, func(a introspect.Allocated) []string { return []string{a.Pool, a.Block} }},
	available: columns[introspect.Available]{blockColumns, func(a introspect.Available) []string { return []string{a.Pool, a.Block} }},
	cooling:   columns[introspect.Cooling]{blockColumns, func(c introspect.Cooling) []string { return []string{c.Pool, c.Block} }},
	besides:   poolsAndBlocks,
	status:    poolsAndBlocks,
}

// ofPorts is for nodes whose pods have NICs in VPCs only.
var ofPorts = supply{
	authority: "ports of VPCs",
	besides:   func(*Printer, introspect.Document) {},
	status:    ports,
}

// ofOthers is for nodes where another network assigns the addresses of pods.
var ofOthers = supply{
	authority: "the network",
	besides:   func(*Printer, introspect.Document) {},
	status:    func(*Printer, introspect.Document) {},
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
	g := NewGrid("POOL", "BLOCKS", "USED", "COOLING", "FREE", "WAITING", "REQUESTS")
	for _, p := range pools {
		blocks := strconv.Itoa(p.Blocks)
		if p.Draining > 0 {
			blocks += fmt.Sprintf(" (%d draining)", p.Draining)
		}
		requests := strconv.Itoa(p.Requests)
		if p.Failed != "" {
			requests += " (" + p.Failed + ")"
		}
		g.Add(p.Name, blocks, strconv.Itoa(p.Used), strconv.Itoa(p.Cooling), strconv.Itoa(p.Free), strconv.Itoa(p.Waiting), requests)
	}
	return g
}

func blockGrid(blocks []introspect.Block) *Grid {
	g := NewGrid("BLOCK", "POOL", "PREFIXES", "USED", "COOLING", "FREE", "READY")
	for _, b := range blocks {
		g.Add(b.Name, b.Pool, spaced(b.Prefixes),
			strconv.Itoa(b.Used), strconv.Itoa(b.Cooling), strconv.Itoa(b.Free), yesOrWhy(b.Ready, b.Reason))
	}
	return g
}

func eniGrid(enis []introspect.ENI) *Grid {
	g := NewGrid("ENI", "INDEX", "PRIMARY", "SUBNET", "MAC", "USED", "CAPACITY", "PREFIXES", "READY")
	for _, e := range enis {
		primary := ""
		if e.Primary {
			primary = "yes"
		}
		g.Add(e.ID, strconv.Itoa(e.DeviceIndex), primary, e.Subnet, e.MAC,
			strconv.Itoa(e.Used), strconv.Itoa(e.Capacity), strconv.Itoa(e.Prefixes), yesOrWhy(e.Ready, e.Reason))
	}
	return g
}

func yesOrWhy(yes bool, why string) string {
	if yes {
		return "yes"
	}
	return "no: " + why
}
