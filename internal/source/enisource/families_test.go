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

// has returns the families that a lease has addresses of.
func has(l source.Lease) ipfamily.Set {
	switch {
	case l.IPv4.IsValid() && l.IPv6.IsValid():
		return ipfamily.Dual
	case l.IPv6.IsValid():
		return ipfamily.OnlyIPv6
	}
	return ipfamily.OnlyIPv4
}

// A node gets other families at a restart while pods run: they keep their addresses, new pods get the
// configured families, and addresses that no pod can have any more are released.
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

// An ENI whose subnet has no IPv6 serves no pod that needs both families, whatever IPv4 it has, and the
// reason names the missing family. A block that is added later is used.
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

// While EC2 is away, a node uses the families of its file.
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
