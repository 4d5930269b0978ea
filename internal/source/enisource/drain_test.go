package enisource

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// A daemon that starts with another subnet for new ENIs drains the old one, whose pods
// go on, and gives it back after the last of them, cooling included.
func TestDrainToAnotherSubnet(t *testing.T) {
	for name, p := range map[string]ipam.Policy{
		"addresses": {WarmIP: 2, FirstInterfaceIndex: 1},
		"prefixes":  {WarmIP: 2, FirstInterfaceIndex: 1, PrefixDelegation: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "t3.small", p, func(t *testing.T, n *node) {
				n.start()
				n.addAll(0, 2, time.Minute)
				n.settle(time.Minute)
				n.kill()
				n.cloud.State.AddSubnet("subnet-2", "zone-a", "10.1.0.0/24", nil)
				n.tune = func(c *eni.Config) { c.SubnetIDs, c.DrainOutdated = []string{"subnet-2"}, true }
				n.start()
				n.settle(5 * time.Minute)
				n.check()
				if name == "addresses" {
					n.wantLayout("0,2,2")
					if l := n.add(2, time.Second); l.Uplink != 2 {
						t.Errorf("a new pod got %v", l)
					}
				}
				n.delAll(0, 2)
				n.settle(20 * time.Second)
				if l := len(n.cloud.State.Truth()); l != 3 {
					t.Errorf("%d ENIs while addresses cool", l)
				}
				n.settle(5 * time.Minute)
				n.check()
				for _, e := range n.cloud.State.Truth() {
					if !primary(e) && e.SubnetID != "subnet-2" {
						t.Errorf("%s is left in %s", e.ID, e.SubnetID)
					}
				}
				if l := len(n.cloud.State.Truth()); l != 2 {
					t.Errorf("%d ENIs in the end", l)
				}
			})
		})
	}
}
