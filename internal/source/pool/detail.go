package pool

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// detail is the pools that this node uses, or could, and its blocks, by name.
type detail struct {
	pools     []poolInfo
	blocks    []introspect.Block // without counts
	addresses []source.AddressInfo
}

// poolInfo is one pool as this node has it.
type poolInfo struct {
	introspect.Pool
	notReady int // addresses whose block's route is not there yet
	retired  int // free ones of draining blocks, and withheld ones
}

func (p poolInfo) states() map[source.State]int {
	return map[source.State]int{
		source.Used: p.Used, source.Warm: p.Free, source.Cooling: p.Cooling, source.NotReady: p.notReady, source.Withdrawn: p.retired,
	}
}

// count counts addresses: those of blocks by the pools, as large blocks do not list
// every address.
func (d detail) count() map[source.State]int {
	block := map[string]bool{}
	for _, b := range d.blocks {
		block[b.Name] = true
	}
	count := source.Count(nil)
	for _, a := range d.addresses {
		if !block[a.Block] {
			count[a.State]++
		}
	}
	for _, p := range d.pools {
		for state, n := range p.states() {
			count[state] += n
		}
	}
	return count
}

// Describe implements source.Detail. It counts what is used of a block and what
// cools; the rest that is not withheld is free, also what the addresses do not list.
func (d detail) Describe(doc *introspect.Document) {
	for _, p := range d.pools {
		doc.Pools = append(doc.Pools, p.Pool)
	}
	used, cooling := map[string]int{}, map[string]int{}
	for _, a := range d.addresses {
		switch a.State {
		case source.Used:
			used[a.Block]++
		case source.Cooling:
			cooling[a.Block]++
		}
	}
	for _, b := range d.blocks {
		b.Used, b.Cooling = used[b.Name], cooling[b.Name]
		b.Free = b.Capacity - b.Used - b.Cooling - b.Withheld
		doc.Blocks = append(doc.Blocks, b)
	}
}

// Metrics implements source.Detail.
func (d detail) Metrics() (out []prometheus.Metric) {
	for _, p := range d.pools {
		exhausted := 0.0
		if p.Exhausted {
			exhausted = 1
		}
		out = append(out,
			famPoolBlocks.Value(float64(p.Blocks-p.Draining), p.Name, "held"),
			famPoolBlocks.Value(float64(p.Draining), p.Name, "draining"),
			famPoolWaiting.Value(float64(p.Waiting), p.Name),
			famPoolExhausted.Value(exhausted, p.Name))
		for state, n := range p.states() {
			out = append(out, famPoolAddresses.Value(float64(n), p.Name, string(state)))
		}
	}
	return out
}

// conditions tell of blocks that cannot be routed. Pods get addresses of others
// meanwhile, so that the node still takes some.
func (b *blocks) conditions() []source.Condition {
	var failed []string
	for _, name := range b.names() {
		if h := b.byName[name]; h.unroutable {
			failed = append(failed, "block "+name+": "+h.down)
		}
	}
	if len(failed) > 0 {
		return []source.Condition{{Type: conditionRouted, Reason: "NotRouted", Message: strings.Join(failed, "; ")}}
	}
	return []source.Condition{{Type: conditionRouted, Healthy: true, Reason: "Routed"}}
}
