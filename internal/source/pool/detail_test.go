package pool

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// pools are those of the source's snapshot.
func (s *Source) pools() []poolInfo { return s.Snapshot().Detail.(detail).pools }

// A document of a node whose addresses are of pools: blocks in place of ENIs, and
// every count right although a large block does not list its addresses.
func TestDocumentOfPools(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2}, poolFacts{name: "web", bits: 12})
	b.pools.namespaces["web"] = "web"
	small := blockOf("default-7", "10.2.0.0/30", "fd02::/126")
	large := blockOf("web-0", "10.3.0.0/20", "")
	large.pool = "web"
	b.give(large)
	b.give(small)
	b.adds(0, "10.2.0.0 fd02::")
	b.adds(1, "10.2.0.1 fd02::1")
	web := podRequest(2)
	web.Pod.Namespace = "web"
	if got := b.answer(b.admit(web, b.now)); got != "10.3.0.0" {
		t.Fatalf("pod 2 got %s", got)
	}
	b.release(key(1), b.now)
	b.blocks.byName["default-7"].draining = true
	b.restoreCooling(netip.MustParseAddr("10.9.0.2"), b.now, b.now)
	gone := source.Lease{IPv4: netip.MustParseAddr("10.9.0.1"), Origin: introspect.Origin{Pool: "gone", Block: "gone-1"}}
	check.OK(t, b.restore(podRequest(3), gone, b.now))
	b.requests.set(&request{name: requestName("web", nodeID, 0), pool: "web", uid: "r", created: b.now, failed: v1alpha1.ReasonPoolExhausted})

	snap := (&Source{state: newGuarded(b.holdings, clock.NewFake(b.now))}).Snapshot()
	count := map[source.State]int{source.Used: 3, source.Warm: 4095, source.Cooling: 2, source.NotReady: 0, source.Withdrawn: 2}
	check.Same(t, snap.Count, count)
	var got introspect.Document
	snap.Detail.Describe(&got)
	want := introspect.Document{
		Pools: []introspect.Pool{
			{Name: "default", Blocks: 1, Draining: 1, Used: 1, Cooling: 1},
			{Name: "web", Blocks: 1, Used: 1, Free: 4095, Requests: 1, Failed: "PoolExhausted", Exhausted: true},
		},
		Blocks: []introspect.Block{
			{Name: "default-7", Pool: "default", Prefixes: small.prefixes(), Reason: "it is being deleted", Capacity: 4, Used: 1, Cooling: 1, Free: 2},
			{Name: "web-0", Pool: "web", Prefixes: large.prefixes(), Ready: true, Capacity: 4096, Used: 1, Free: 4095},
		},
	}
	check.Same(t, got, want, cmpopts.EquateComparable(netip.Prefix{}))
	for _, a := range snap.Addresses {
		origin := map[string]introspect.Origin{
			"10.2.0.1": {Pool: "default", Block: "default-7"}, "10.9.0.1": gone.Origin, "10.9.0.2": {},
		}
		if want, ok := origin[a.Addr.String()]; ok && a.Origin != want {
			t.Errorf("%s is of %+v, want %+v", a.Addr, a.Origin, want)
		}
	}
	if want := []source.Group{{Name: "default-7", Capacity: 4}, {Name: "web-0", Capacity: 4096}}; !cmp.Equal(snap.Groups, want) {
		t.Errorf("groups %+v, want %+v", snap.Groups, want)
	}
}

func TestAddressesOfPoolsAreCounted(t *testing.T) {
	d := detail{
		blocks: []introspect.Block{{Name: "default-0"}},
		pools: []poolInfo{
			{Pool: introspect.Pool{Name: "default", Blocks: 2, Draining: 1, Used: 3, Cooling: 1, Free: 1000, Waiting: 2, Exhausted: true}, notReady: 4, retired: 5},
			{Pool: introspect.Pool{Name: "public", Free: 1}},
		},
	}
	of := func(a, block string, state source.State) source.AddressInfo {
		return source.AddressInfo{Addr: netip.MustParseAddr(a), Origin: introspect.Origin{Block: block}, State: state}
	}
	want := map[source.State]int{source.Used: 4, source.Warm: 1001, source.Cooling: 2, source.NotReady: 4, source.Withdrawn: 5}
	d.addresses = []source.AddressInfo{
		of("10.0.0.1", "default-0", source.Used), // one of the three
		of("10.9.0.1", "", source.Used),          // of no block that the node has
		of("10.9.0.2", "gone-1", source.Cooling),
	}
	check.Same(t, d.count(), want)
	got := map[string]float64{}
	for _, m := range d.Metrics() {
		var out dto.Metric
		check.OK(t, m.Write(&out))
		for _, l := range out.Label {
			got[l.GetValue()] += out.Gauge.GetValue()
		}
	}
	// Blocks, addresses, ADDs that wait, and exhaustion of each pool.
	if got["default"] != 2+1013+2+1 || got["public"] != 1 || got["held"] != 1 || got["draining"] != 1 {
		t.Errorf("%v", got)
	}
}

func TestBlockThatIsNotRoutedIsACondition(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 1})
	b.give(blockOf("default-0", "10.0.0.0/31", ""))
	b.give(blockOf("default-1", "10.0.0.2/31", ""))
	b.blocks.byName["default-1"].draining = true
	for _, tc := range []struct {
		down    string // why default-0 is not routed
		healthy bool
		reason  string
		message string
	}{{"", true, "Routed", ""}, {"file exists", false, "NotRouted", "block default-0: file exists"}, {"", true, "Routed", ""}} {
		if h := b.blocks.byName["default-0"]; tc.down != "" {
			h.failed(tc.down, true)
		} else {
			h.program()
		}
		want := []source.Condition{{Type: "BlocksRouted", Healthy: tc.healthy, Reason: tc.reason, Message: tc.message}}
		check.Same(t, b.blocks.conditions(), want)
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	m.Asked("create-request", "success", time.Second)
	m.Supplied("default", time.Second)
	want := map[string]float64{
		`berth_kubernetes_calls_total{call="create-request",result="success"}`: 1,
		`berth_kubernetes_call_duration_seconds{call="create-request"}`:        1,
		`berth_block_request_duration_seconds{pool="default"}`:                 1,
	}
	check.Same(t, sourcetest.Values(t, r, Reference), want)
}
