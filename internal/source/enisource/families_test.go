package enisource

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

// has returns the address families of a lease.
func has(l source.Lease) ipfamily.Set {
	switch {
	case l.IPv4.IsValid() && l.IPv6.IsValid():
		return ipfamily.Dual
	case l.IPv6.IsValid():
		return ipfamily.OnlyIPv6
	}
	return ipfamily.OnlyIPv4
}

// The node's families change at a restart while pods run: they keep their addresses, new pods get the
// configured families, and addresses that pods can no longer use are released.
func TestFamiliesChange(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.State.SetIPv6("subnet-1", "2001:db8::/64")
		for i, set := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv4, ipfamily.OnlyIPv6} {
			n.policy.Families = set
			n.startAndSettle(time.Second)
			if l := n.add(i, 45*time.Second); has(l) != set {
				t.Errorf("with %s a pod got %v", set, l.Addrs())
			}
			n.settle(2 * time.Minute)
			n.check()
			n.kill()
		}
		n.start()
		n.delAll(0, 4)
		n.settle(5 * time.Minute)
		n.finalCheck()
		n.wantLayout("65536")
	})
}

// An ENI whose subnet has no IPv6 serves no pod that needs both families, even if it has IPv4 addresses, and the
// reason names the missing family. An IPv6 block that is added later is used.
func TestDualStackPodsNeedIPv6(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1, Families: ipfamily.Dual}, func(t *testing.T, n *node) {
		n.cloud.State.RemoveSubnet("subnet-1")
		n.cloud.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/20", nil)
		n.startAndSettle(time.Second)
		if err := n.fails(1, 45*time.Second, "no-ipv6"); !strings.Contains(err.Error(), "IPv6 CIDR block") {
			t.Errorf("error = %v, want text \"IPv6 CIDR block\"", err)
		}
		n.wantLayout("0")
		n.cloud.State.SetIPv6("subnet-1", "2001:db8::/64")
		n.settle(3 * time.Minute)
		if l := n.add(1, 45*time.Second); has(l) != ipfamily.Dual {
			t.Errorf("addresses = %v, want both families", l.Addrs())
		}
		n.check()
	})
}

// While EC2 is unavailable, a node uses the families from its file.
func TestStoredFamiliesApplyWithoutEC2(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 2, Families: ipfamily.Dual}, func(t *testing.T, n *node) {
		n.startAndSettle(time.Second)
		first := n.add(1, time.Second)
		n.settle(time.Minute)
		n.kill()
		n.cloud.Front.Inject(cloudfake.Fault{Times: 1 << 20, Err: cloudfake.Err(cloud.Transient, "")})
		n.startAndSettle(time.Minute)
		second := n.add(2, time.Second)
		if has(second) != ipfamily.Dual || second.IPv6 == first.IPv6 {
			t.Errorf("addresses = %v after %v, want another dual-stack pair", second.Addrs(), first.Addrs())
		}
		if got := n.store.inv; got.Families != ipfamily.Dual || len(got.ENIs[0].SubnetIPv6) != 1 || (eni.Inventory{}).Families != "" {
			t.Errorf("stored inventory = %+v, want dual-stack", got)
		}
	})
}

// six is the CIDR of subnet-6, which is IPv6-only.
var six = netip.MustParsePrefix("2001:db8:0:6::/64")

// inSix puts the further ENIs of a node into an IPv6-only subnet; the node's own subnet has IPv4.
func (n *node) inSix() {
	n.policy.FirstInterfaceIndex = 1
	n.cloud.State.AddIPv6Subnet("subnet-6", "zone-a", six.String(), nil)
	n.tune = func(c *eni.Config) { c.SubnetIDs = []string{"subnet-6"} }
}

// ofSix returns the ENIs in subnet-6.
func (n *node) ofSix() []cloud.ENI {
	return slices.DeleteFunc(n.cloud.State.Truth(), func(e cloud.ENI) bool { return e.SubnetID != "subnet-6" })
}

// freeAtHome returns the number of free IPv4 addresses in eth0's subnet.
func (n *node) freeAtHome() int {
	n.t.Helper()
	list, err := n.cloud.Subnets(n.t.Context(), cloud.SubnetFilter{IDs: []string{"subnet-1"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return list[0].Free
}

// IPv6-only pods get addresses of ENIs in an IPv6-only subnet, which have no IPv4 address, even after a
// restart, and after a restart while EC2 is unavailable.
func TestPodsInIPv6OnlySubnet(t *testing.T) {
	bubble(t, "m5.large", ipam.Policy{WarmIP: 2, Families: ipfamily.OnlyIPv6}, func(t *testing.T, n *node) {
		n.inSix()
		free := n.freeAtHome()
		n.startAndSettle(time.Minute)
		if l := n.add(1, time.Minute); !six.Contains(l.IPv6) || l.IPv4.IsValid() {
			t.Errorf("addresses of the pod = %v, want one of %s only", l.Addrs(), six)
		}
		if list := n.ofSix(); len(list) != 1 || list[0].Primary.IsValid() || n.freeAtHome() != free {
			t.Errorf("ENIs = %+v, free IPv4 addresses in eth0's subnet = %d; want %d", list, n.freeAtHome(), free)
		}
		n.cloud.Front.ResetCalls()
		n.settle(time.Hour)
		check.Equal(t, n.cloud.Front.Count("Subnets"), 0, "calls for subnets within an hour without changes")
		n.kill()
		n.startAndSettle(time.Minute)
		n.add(2, time.Minute)
		n.check()
		n.kill()
		n.cloud.Front.Inject(cloudfake.Fault{Times: 1 << 20, Err: cloudfake.Err(cloud.Transient, "")})
		n.startAndSettle(time.Minute)
		if l := n.add(3, time.Second); !six.Contains(l.IPv6) {
			t.Errorf("addresses while EC2 is unavailable = %v, want one of %s", l.Addrs(), six)
		}
	})
}

// An IPv6-only subnet is useless for pods with IPv4 addresses, and for an instance that is not based on
// Nitro: no ENI is created there, and the error explains it.
func TestIPv6OnlySubnetWithoutUse(t *testing.T) {
	for _, tc := range []struct {
		name, instanceType, says string
		families                 ipfamily.Set
	}{
		{"IPv4", "m5.large", "configure one that has IPv4 addresses", ipfamily.OnlyIPv4},
		{"dual", "m5.large", "configure one that has IPv4 addresses", ipfamily.Dual},
		{"IPv6, not Nitro", "m4.large", "built on Nitro", ipfamily.OnlyIPv6},
	} {
		t.Run(tc.name, inBubble(tc.instanceType, ipam.Policy{WarmIP: 2, Families: tc.families}, func(t *testing.T, n *node) {
			n.inSix()
			n.startAndSettle(time.Minute)
			if err := n.fails(1, 45*time.Second, "no-ipv4"); !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error = %v, want text %q", err, tc.says)
			}
			check.Equal(t, len(n.ofSix()), 0, "ENIs created")
		}))
	}
}

// A full IPv6-only subnet is retried, but with a backoff.
func TestFullIPv6OnlySubnetIsRetried(t *testing.T) {
	bubble(t, "m5.large", ipam.Policy{WarmIP: 2, Families: ipfamily.OnlyIPv6}, func(t *testing.T, n *node) {
		n.inSix()
		n.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 3, Err: cloudfake.Err(cloud.SubnetFull, "")})
		n.startAndSettle(time.Minute)
		check.AtMost(t, n.cloud.Front.Count("CreateENI"), 2, "calls within a minute")
		n.settle(time.Hour)
		if l := n.add(1, time.Minute); !six.Contains(l.IPv6) {
			t.Errorf("addresses of the pod = %v, want one of %s", l.Addrs(), six)
		}
	})
}
