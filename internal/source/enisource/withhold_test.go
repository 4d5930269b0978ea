package enisource

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
)

// What the node has itself no pod gets, of single addresses and of prefixes, and others are asked for in its
// place. Whoever waits gets it when the node has it no more.
func TestAddressesThatTheNodeHas(t *testing.T) {
	for name, tc := range map[string]struct {
		policy        ipam.Policy
		before, after string // the layout
	}{
		"at the limit": {ipam.Policy{MinimumIP: 3, MaxENI: 1}, "3", "3"},
		"replaced":     {ipam.Policy{WarmIP: 1, MaxENI: 1}, "1", "2"},
		"of a prefix":  {ipam.Policy{WarmIP: 16, PrefixDelegation: true, MaxENI: 1}, "16", "32"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "t3.small", tc.policy, func(t *testing.T, n *node) {
				n.start()
				n.settle(time.Second)
				n.wantLayout(tc.before)
				var warm []netip.Addr
				for _, a := range n.Snapshot().Addresses {
					warm = append(warm, a.Addr)
				}
				has := append(warm[:1:1], netip.MustParseAddr("192.0.2.1"))
				if kept := n.Withhold(has); len(kept) != 1 || kept[0] != warm[0] {
					t.Errorf("withheld %v, want %s", kept, warm[0])
				}
				if kept := n.Withhold(has); len(kept) != 1 || kept[0] != warm[0] {
					t.Errorf("withheld %v the second time, want %s", kept, warm[0])
				}
				n.settle(time.Minute)
				n.wantLayout(tc.after)
				if got := n.Snapshot().Count[source.Withdrawn]; got != 1 {
					t.Errorf("%d addresses are not handed out, want 1", got)
				}
				if uses, _ := n.Uses(); len(uses) != 1 || uses[0].Addr != warm[0] || uses[0].Cooling || !uses[0].Listed {
					t.Errorf("the operator is told of uses %+v", uses)
				}
				for i := 0; ; i++ {
					l, err := n.try(i, time.Minute)
					if err != nil {
						break
					}
					if l.IPv4 == warm[0] {
						t.Fatalf("pod %d got %s, which the node has", i, l.IPv4)
					}
				}
				if n.links.dumps != 1 {
					t.Errorf("the links of the node were dumped %d times, and nobody said that one changed", n.links.dumps)
				}
				n.Withhold(nil)
				if l := n.add(100, time.Minute); l.IPv4 != warm[0] {
					t.Errorf("the pod that waited got %s, want %s", l.IPv4, warm[0])
				}
				n.check()
			})
		})
	}
}
