package enisource

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// What other software on the node holds, single or in a prefix, is neither handed out nor released to EC2, whatever the warm
// target is, and is released once nobody holds it.
func TestAddressesOfOthersAreNotReleased(t *testing.T) {
	for name, tc := range map[string]struct{ before, after ipam.Policy }{
		"single":          {ipam.Policy{WarmIP: 8}, ipam.Policy{WarmIP: 1}},
		"of a prefix":     {ipam.Policy{WarmIP: 40, PrefixDelegation: true}, ipam.Policy{WarmIP: 1, PrefixDelegation: true}},
		"of another ENI":  {ipam.Policy{MinimumIP: 14}, ipam.Policy{WarmIP: 1}},
		"a whole ENI's":   {ipam.Policy{MinimumIP: 14}, ipam.Policy{MinimumIP: 1}},
		"of all prefixes": {ipam.Policy{WarmIP: 40, PrefixDelegation: true}, ipam.Policy{MinimumIP: 1, PrefixDelegation: true}},
	} {
		t.Run(name, inBubble("m5.large", tc.before, func(t *testing.T, n *node) {
			n.startAndSettle(2 * time.Minute)
			var held []netip.Addr
			for i, a := range n.Snapshot().Addresses {
				if i%5 == 0 || name == "a whole ENI's" && i%2 == 0 {
					held = append(held, a.Addr)
				}
			}
			kept := n.Withhold(held)
			if len(kept) != len(held) || len(held) < 2 {
				t.Fatalf("withheld %v of %v", kept, held)
			}
			assigned := func(a netip.Addr) bool {
				return slices.ContainsFunc(n.cloud.State.Truth(), func(e cloud.ENI) bool {
					return slices.ContainsFunc(things(e), func(p netip.Prefix) bool { return p.Contains(a) })
				})
			}
			n.Configure(Desired{Settings: n.settingsOf(func(s *eni.Settings) { s.Policy = tc.after })})
			n.settle(30 * time.Minute)
			for _, a := range held {
				if !assigned(a) {
					t.Errorf("%s, which others hold, was released", a)
				}
			}
			n.kill()
			n.policy = tc.after
			n.start()
			n.Withhold(held)
			n.settle(30 * time.Minute)
			for _, a := range held {
				if !assigned(a) {
					t.Errorf("%s, which others hold, was released after a restart", a)
				}
			}
			n.Withhold(nil)
			n.settle(30 * time.Minute)
			if !slices.ContainsFunc(held, func(a netip.Addr) bool { return !assigned(a) }) {
				t.Error("all addresses stay although nobody holds them any longer")
			}
			n.check()
		}))
	}
}
