package ctl

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/introspect"
)

// supply prints the node's pools and blocks, where its addresses are of those.
func (p *printer) supply(doc introspect.Document) {
	if !ofPools(doc) {
		return
	}
	p.section("Pools", poolGrid(doc.Pools), "No pod of this node uses a pool.")
	p.section("Blocks", blockGrid(doc.Blocks), "This node has no block.")
}

func poolGrid(pools []introspect.Pool) grid {
	g := grid{{"POOL", "BLOCKS", "USED", "COOLING", "FREE", "WAITING", "REQUESTS"}}
	for _, p := range pools {
		blocks := strconv.Itoa(p.Blocks)
		if p.Draining > 0 {
			blocks += fmt.Sprintf(" (%d draining)", p.Draining)
		}
		requests := strconv.Itoa(p.Requests)
		if p.Failed != "" {
			requests += " (" + p.Failed + ")"
		}
		g.add(p.Name, blocks, strconv.Itoa(p.Used), strconv.Itoa(p.Cooling), strconv.Itoa(p.Free), strconv.Itoa(p.Waiting), requests)
	}
	return g
}

func blockGrid(blocks []introspect.Block) grid {
	g := grid{{"BLOCK", "POOL", "PREFIXES", "USED", "COOLING", "FREE", "READY"}}
	for _, b := range blocks {
		var prefixes []string
		for _, p := range b.Prefixes {
			prefixes = append(prefixes, p.String())
		}
		g.add(b.Name, b.Pool, strings.Join(prefixes, " "),
			strconv.Itoa(b.Used), strconv.Itoa(b.Cooling), strconv.Itoa(b.Free), yesOrWhy(b.Ready, b.Reason))
	}
	return g
}
