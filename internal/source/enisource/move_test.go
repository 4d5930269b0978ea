package enisource

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipam"
)

// The last of 49 pods runs on the second ENI, and is the last to end: then the
// node's one warm prefix moves to the first ENI and the second goes, once and for all.
func TestIdleNodeKeepsNoSecondENI(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{PrefixDelegation: true, WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
		n.start()
		n.addAll(0, 49, time.Minute)
		n.settle(time.Second)
		n.wantLayout("48,16")
		last := -1
		for i := range 49 {
			if n.leases[key(i)].Uplink == 1 {
				last = i
			}
		}
		for i := range 49 {
			if i != last {
				n.del(i)
			}
		}
		n.settle(5 * time.Minute)
		n.wantLayout("0,16")
		n.del(last)
		n.settle(45 * time.Second) // cooling, and less than the patience after it
		n.wantLayout("0,16")
		n.settle(5 * time.Minute)
		n.wantLayout("16")
		n.check()
		n.cloud.Front.ResetCalls()
		n.settle(time.Hour)
		if got := n.cloud.Front.Count(changes...); got != 0 {
			t.Errorf("%d changes at EC2 within an hour of rest", got)
		}
		if l := n.add(100, time.Second); l.Uplink != 0 {
			t.Errorf("the next pod got %v", l)
		}
	})
}
