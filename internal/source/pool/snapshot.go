package pool

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// Snapshot implements source.Source. The address of the first family stands for a dual-stack pair. For a block of more
// than 256 addresses only those that were ever used are listed; the detail's pools count all of them.
func (s *Source) Snapshot() (out source.Snapshot) {
	s.state.with(func(n *holdings, now time.Time) { out = n.at(now).snapshot() })
	return out
}

func (d view) snapshot() source.Snapshot {
	n := d.n
	out := source.Snapshot{Waiting: n.pools.undecided.Len(), LastError: d.lastError(), Conditions: n.blocks.conditions()}
	var all detail
	for _, name := range slices.Sorted(maps.Keys(n.pools.byName)) {
		p := n.pools.byName[name]
		out.Waiting += p.queue.Len()
		all.pools = append(all.pools, d.poolInfo(p))
		for a := range p.alloc.Addresses() {
			out.Addresses = append(out.Addresses, n.blocks.addressInfo(a))
		}
	}
	out.Addresses = append(out.Addresses, n.leases.outside()...)
	slices.SortFunc(out.Addresses, func(x, y source.AddressInfo) int { return x.Addr.Compare(y.Addr) })
	for _, name := range n.blocks.names() {
		b := describeBlock(n.blocks.byName[name])
		b.Withheld = n.pools.counts(n.blocks.byName[name]).Withdrawn
		all.blocks = append(all.blocks, b)
		out.Groups = append(out.Groups, source.Group{Name: b.Name, Capacity: b.Capacity})
	}
	all.addresses = out.Addresses
	out.Count, out.Detail = all.count(), all
	return out
}

// describeBlock returns a block without the counts, which the detail adds.
func describeBlock(h *heldBlock) introspect.Block {
	g := introspect.Block{Name: h.name, Pool: h.pool, Prefixes: h.prefixes(), Ready: h.serves(), Capacity: sizeOf(h.first)}
	switch {
	case h.unroutable:
		g.Reason = h.down
	case g.Ready:
	case h.lost:
		g.Reason = "it was taken from this node, and stays for the pods that have addresses of it"
	case h.conflict != "":
		g.Reason = "block " + h.conflict + " of this node has the same addresses"
	case h.deleted():
		g.Reason = "it is being deleted"
	case h.returning:
		g.Reason = "it is empty and is being returned"
	case h.down != "":
		g.Reason = h.down
	default:
		g.Reason = "its routes are not set yet"
	}
	return g
}

func (b *blocks) addressInfo(v ipam.AddressView[attachment.Key]) source.AddressInfo {
	of := introspect.Origin{Block: v.Group}
	if h := b.byName[v.Group]; h != nil {
		of.Pool, v.Withdrawn = h.pool, v.Withdrawn || h.ends()
	}
	return source.Info(v, of)
}

// poolInfo returns the counts of a pool on this node.
func (d view) poolInfo(s *poolState) poolInfo {
	p := poolInfo{Pool: introspect.Pool{Name: s.name, Waiting: s.queue.Len()}}
	for _, h := range d.n.blocks.byName {
		if h.pool != s.name {
			continue
		}
		p.Blocks++
		if h.deleted() {
			p.Draining++
		}
		c := d.n.pools.counts(h)
		p.Used += c.Used
		p.Cooling += c.Cooling
		p.retired += c.Withdrawn
		switch {
		case h.serves():
			p.Free += c.Free
		case h.ends():
			p.retired += c.Free
		default:
			p.notReady += c.Free
		}
	}
	for _, r := range d.n.requests.of(s.name) {
		if d.n.blocks.answered(r) {
			continue
		}
		p.Requests++
		if r.failed != "" {
			p.Failed = r.failed
			p.Exhausted = p.Exhausted || r.failed == v1alpha1.ReasonPoolExhausted
		}
	}
	if s.deleting {
		p.Failed = v1alpha1.ReasonPoolDeleted
	}
	return p
}

// detail holds the pools that this node uses or may use, and its blocks, by name.
type detail struct {
	pools     []poolInfo
	blocks    []introspect.Block // without counts
	addresses []source.AddressInfo
}

// poolInfo describes one pool on this node.
type poolInfo struct {
	introspect.Pool
	notReady int // addresses whose block is not routed yet
	retired  int // free addresses of draining blocks, and withheld ones
}

func (p poolInfo) states() map[source.State]int {
	return map[source.State]int{
		source.Used: p.Used, source.Warm: p.Free, source.Cooling: p.Cooling, source.NotReady: p.notReady, source.Withdrawn: p.retired,
	}
}

// count counts addresses. Those of blocks come from the pools' counts, because large blocks do not list every address.
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

// Describe implements source.Detail. Addresses of a block that are neither used, cooling nor withheld are free, whether
// listed or not.
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

// conditions reports blocks that cannot be routed. Pods get addresses of other blocks meanwhile, so that the node stays
// ready.
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

var (
	famPoolBlocks    = metric.New("berth_pool_blocks", "gauge", "Blocks of address pools that this node has, by pool and state: held, or draining (deleted, but kept until the last pod with one of its addresses is gone).", "pool", "state")
	famPoolAddresses = metric.New("berth_pool_addresses", "gauge", "Addresses of these blocks, where a pair of a dual-stack pool counts once, by pool and state as in berth_addresses.", "pool", "state")
	famPoolWaiting   = metric.New("berth_pool_waiting_adds", "gauge", "ADDs that wait for an address of a pool.", "pool")
	famPoolExhausted = metric.New("berth_pool_exhausted", "gauge", "1 while this node requests a block of the pool and none is free, else 0.", "pool")
	famBlockTime     = metric.New("berth_block_request_duration_seconds", "histogram", "Time from requesting a block of a pool until this node had it.", "pool")
	famAPICalls      = metric.New("berth_kubernetes_calls_total", "counter", "Requests to the Kubernetes API about blocks, by call (create-request, delete-request, look-for-block, return-block, free-block or renew-block) and result: success or error.", "call", "result")
	famAPITime       = metric.New("berth_kubernetes_call_duration_seconds", "histogram", "Duration of these requests.", "call")
)

const conditionRouted = "BlocksRouted"

// Reference is the part of the metrics reference for this source.
var Reference = source.Reference{
	Families:   []metric.Family{famPoolBlocks, famPoolAddresses, famPoolWaiting, famPoolExhausted, famBlockTime, famAPICalls, famAPITime},
	Conditions: [][2]string{{conditionRouted, "with address pools: every block of the node could be routed"}},
}

// Metrics implements Observer.
type Metrics struct {
	requests *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famBlockTime.Histogram(metric.CallBuckets), famAPICalls.Counter(), famAPITime.Histogram(metric.CallBuckets)}
	to.MustRegister(m.requests, m.calls, m.duration)
	return m
}

// Asked counts one request to the API server.
func (m Metrics) Asked(what, result string, took time.Duration) {
	m.calls.WithLabelValues(what, result).Inc()
	m.duration.WithLabelValues(what).Observe(took.Seconds())
}

// Supplied observes the latency of one requested block.
func (m Metrics) Supplied(pool string, took time.Duration) {
	m.requests.WithLabelValues(pool).Observe(took.Seconds())
}
