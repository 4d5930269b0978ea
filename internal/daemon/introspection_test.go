package daemon

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/introspect"
	"github.com/berthnet/berth/internal/source"
)

// told is a source that says what a test has it say.
type told struct {
	source.Source
	snap source.Snapshot
}

func (s told) Snapshot() source.Snapshot { return s.snap }

// A document of a node whose addresses are of pools: blocks in place of ENIs,
// and every count right although a large block does not list its addresses.
func TestDocumentOfPools(t *testing.T) {
	d := newNode(t).assemble()
	now := d.Clock.Now()
	small, large := netip.MustParsePrefix("10.2.0.0/30"), netip.MustParsePrefix("10.3.0.0/20")
	small6 := netip.MustParsePrefix("fd02::/126")
	at := func(a, block string, state source.State) source.AddressInfo {
		return source.AddressInfo{Addr: netip.MustParseAddr(a), Group: block, State: state, Since: now}
	}
	d.IPAM, d.Source = "pool", told{d.Source, source.Snapshot{
		Groups: []source.GroupInfo{
			{ID: "web-0", Pool: "web", Prefixes: []netip.Prefix{large}, Ready: true, Capacity: 4096},
			{ID: "default-7", Pool: "default", Prefixes: []netip.Prefix{small, small6}, Reason: "it is being deleted", Capacity: 4},
		},
		Pools: []source.PoolInfo{
			{Name: "default", Blocks: 1, Draining: 1, Used: 1, Cooling: 1, Retired: 2},
			{Name: "web", Blocks: 1, Used: 1, Free: 4095, Waiting: 1, Requests: 1, Failed: "PoolExhausted", Exhausted: true},
		},
		Addresses: []source.AddressInfo{
			at("10.2.0.0", "default-7", source.Used), at("10.2.0.1", "default-7", source.Cooling),
			at("10.2.0.2", "default-7", source.Withdrawn), at("10.2.0.3", "default-7", source.Withdrawn),
			at("10.3.0.0", "web-0", source.Used), at("10.3.0.9", "web-0", source.Warm),
			at("10.9.0.1", "gone-1", source.Used), at("10.9.0.2", "", source.Cooling),
		},
		Waiting: 1,
	}}
	doc := d.document()
	same := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("totals", doc.Totals, introspect.Totals{Allocated: 3, Available: 4095, Cooling: 2, Withdrawn: 2, Capacity: 4100, Waiting: 1})
	same("ENIs", doc.ENIs, []introspect.ENI{})
	same("pools", doc.Pools, []introspect.Pool{
		{Name: "default", Blocks: 1, Draining: 1, Used: 1, Cooling: 1},
		{Name: "web", Blocks: 1, Used: 1, Free: 4095, Waiting: 1, Requests: 1, Failed: "PoolExhausted", Exhausted: true},
	})
	same("blocks", doc.Blocks, []introspect.Block{
		{Name: "default-7", Pool: "default", Prefixes: []netip.Prefix{small, small6}, Reason: "it is being deleted", Capacity: 4, Used: 1, Cooling: 1, Free: 2},
		{Name: "web-0", Pool: "web", Prefixes: []netip.Prefix{large}, Ready: true, Capacity: 4096, Used: 1, Free: 4095},
	})
	same("available", doc.Available, []introspect.Available{{Address: netip.MustParseAddr("10.3.0.9"), Pool: "web", Block: "web-0"}})
	left := d.Source.CoolingPeriod()
	cooling := func(a, pool, block string) introspect.Cooling {
		return introspect.Cooling{Address: netip.MustParseAddr(a), Pool: pool, Block: block,
			Since: now.UTC(), Until: now.Add(left).UTC(), RemainingSeconds: left.Round(time.Millisecond).Seconds()}
	}
	same("cooling", doc.Cooling, []introspect.Cooling{cooling("10.2.0.1", "default", "default-7"), cooling("10.9.0.2", "", "")})
}
