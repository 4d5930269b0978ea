package enisource

import (
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source"
)

// has tells of which families a lease has addresses.
func has(l source.Lease) ipfamily.Set {
	switch {
	case l.IPv4.IsValid() && l.IPv6.IsValid():
		return ipfamily.Dual
	case l.IPv6.IsValid():
		return ipfamily.OnlyIPv6
	}
	return ipfamily.OnlyIPv4
}

// A node is given other families at a restart, while pods run: they keep what they have,
// new ones get what is asked for, and what no pod has any more goes back.
func TestFamiliesChange(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.State.SetIPv6("subnet-1", "2001:db8::/64")
		for i, set := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv4, ipfamily.OnlyIPv6} {
			n.policy.Families = set
			n.start()
			n.settle(time.Second)
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

// An ENI whose subnet gives no IPv6 serves nobody who is to have both, whatever it has of
// IPv4, and the reason says which family is missing. A block that comes later is used.
func TestWithoutIPv6NobodyIsServed(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1, Families: ipfamily.Dual}, func(t *testing.T, n *node) {
		n.cloud.State.RemoveSubnet("subnet-1")
		n.cloud.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/20", nil)
		n.start()
		n.settle(time.Second)
		if err := n.fails(1, 45*time.Second, "no-ipv6"); !strings.Contains(err.Error(), "IPv6 CIDR block") {
			t.Errorf("the message is %v", err)
		}
		n.wantLayout("0")
		n.cloud.State.SetIPv6("subnet-1", "2001:db8::/64")
		n.settle(3 * time.Minute)
		if l := n.add(1, 45*time.Second); has(l) != ipfamily.Dual {
			t.Errorf("got %v", l.Addrs())
		}
		n.check()
	})
}

// While EC2 is away a node goes on with the families of its file.
func TestFamiliesOutliveEC2(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 2, Families: ipfamily.Dual}, func(t *testing.T, n *node) {
		n.start()
		n.settle(time.Second)
		first := n.add(1, time.Second)
		n.settle(time.Minute)
		n.kill()
		n.cloud.Front.Inject(cloudfake.Fault{Times: 1 << 20, Err: cloudfake.Err(cloud.Transient, "")})
		n.start()
		n.settle(time.Minute)
		second := n.add(2, time.Second)
		if has(second) != ipfamily.Dual || second.IPv6 == first.IPv6 {
			t.Errorf("%v after %v", second.Addrs(), first.Addrs())
		}
		if got := n.store.inv; got.Families != ipfamily.Dual || len(got.ENIs[0].SubnetIPv6) != 1 || (eni.Inventory{}).Families != "" {
			t.Errorf("the file has %+v", got)
		}
	})
}
