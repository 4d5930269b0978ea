package fleet

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
)

// mapmaker is a cloud that describes subnets with a CIDR of its own, if it has one.
type mapmaker struct {
	*cloudfake.Cloud
	cidr netip.Prefix
}

func (m *mapmaker) Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error) {
	list, err := m.Cloud.Subnets(ctx, f)
	for i := range list {
		if m.cidr.IsValid() {
			list[i].CIDR = m.cidr
		}
	}
	return list, err
}

// A subnet has its CIDR for life, and its ENIs' addresses are in it: nodes find
// their router by it.
func TestCIDRsOfSubnetsThatCannotBeTrue(t *testing.T) {
	truth := netip.MustParsePrefix("10.0.0.0/16")
	for _, tt := range []struct {
		name        string
		first, then string // empty: the truth
		served      bool   // before it is told
	}{
		{"of others, from the start", "10.9.0.0/16", "", false},
		{"of others, later", "", "10.9.0.0/16", true},
		{"smaller, later", "", "10.0.0.0/20", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				cloud := &mapmaker{Cloud: w.cloud}
				p := w.operator(cloud)
				s := settings(0, 4)
				tell := func(cidr string) {
					if cloud.cidr = (netip.Prefix{}); cidr != "" {
						cloud.cidr = netip.MustParsePrefix(cidr)
					}
				}
				look := func(want bool) {
					t.Helper()
					for range 10 {
						pass(30 * time.Second)
						for _, n := range p.writers {
							n.start()
							p.Kick(n.name)
						}
					}
					pass(time.Second)
					for _, n := range p.writers {
						n.mu.Lock()
						for _, e := range n.inv.ENIs {
							if want && e.Subnet != truth || e.Subnet.IsValid() && e.Subnet != truth {
								t.Errorf("%s of %s was published in %v", e.ID, n.name, e.Subnet)
							}
						}
						n.mu.Unlock()
					}
				}
				tell(tt.first)
				p.set(t, w.objects[0], s)
				look(tt.served)
				tell(tt.then)
				p.set(t, w.objects[1], s)
				look(true)
				w.agree()
				p.stop()
			})
		})
	}
}
