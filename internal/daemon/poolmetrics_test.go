package daemon

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/source"
)

func TestBlockThatIsNotRoutedIsACondition(t *testing.T) {
	d := newNode(t).assemble()
	for _, tc := range []struct {
		blocks  []source.GroupInfo
		healthy bool
		reason  string
		message string
	}{
		{[]source.GroupInfo{{ID: "default-0", Ready: true}, {ID: "default-1", Reason: "it is being deleted"}}, true, "Routed", ""},
		{[]source.GroupInfo{{ID: "default-0", Failed: true, Reason: "file exists"}, {ID: "default-1", Ready: true}}, false, "NotRouted", "block default-0: file exists"},
		{[]source.GroupInfo{{ID: "default-1", Ready: true}}, true, "Routed", ""},
	} {
		d.lookAtBlocks(tc.blocks)
		if c, _ := d.conditions.get(ConditionRouted); c.Healthy != tc.healthy || c.Reason != tc.reason || c.Message != tc.message {
			t.Errorf("%+v: %+v", tc.blocks, c)
		}
	}
}

func TestAddressesOfPoolsAreCounted(t *testing.T) {
	snap := source.Snapshot{
		Groups: []source.GroupInfo{{ID: "default-0"}},
		Pools: []source.PoolInfo{
			{Name: "default", Blocks: 2, Draining: 1, Used: 3, Cooling: 1, Free: 1000, NotReady: 4, Retired: 5, Waiting: 2, Exhausted: true},
			{Name: "public", Free: 1},
		},
		Addresses: []source.AddressInfo{
			{Addr: netip.MustParseAddr("10.0.0.1"), Group: "default-0", State: source.Used}, // one of the three
			{Addr: netip.MustParseAddr("10.9.0.1"), State: source.Used},                     // of no block that the node has
			{Addr: netip.MustParseAddr("10.9.0.2"), Group: "gone-1", State: source.Cooling},
		},
	}
	want := map[source.State]int{source.Used: 4, source.Warm: 1001, source.Cooling: 2, source.NotReady: 4, source.Withdrawn: 5}
	if d := cmp.Diff(want, countAddresses(snap)); d != "" {
		t.Error(d)
	}
	got := map[string]float64{}
	collectPools(func(desc *prometheus.Desc, v float64, labels ...string) {
		for _, l := range labels {
			got[l] += v
		}
	}, snap.Pools)
	// Blocks, addresses, ADDs that wait, and exhaustion of each pool.
	if got["default"] != 2+1013+2+1 || got["public"] != 1 || got["held"] != 1 || got["draining"] != 1 {
		t.Errorf("%v", got)
	}
}
