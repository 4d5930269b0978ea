package enisource

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// Jobs that run each minute, as often as a CronJob can, find the addresses of the
// last time: with the default shrink delay they cost no change at EC2, with
// half of it several a minute. When they stop, the surplus goes within that delay.
func TestJobsOfEachMinuteKeepTheirAddresses(t *testing.T) {
	for delay, churns := range map[time.Duration]bool{0: false, 30 * time.Second: true} {
		bubble(t, "t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
			n.tune = func(c *eni.Config) { c.ShrinkDelay = delay }
			n.start()
			wave := func() {
				n.addAll(0, 6, 30*time.Second)
				n.settle(10 * time.Second)
				n.delAll(0, 6)
				n.settle(50 * time.Second)
			}
			wave()
			n.cloud.Front.ResetCalls()
			const minutes = 10
			for range minutes {
				wave()
			}
			if got := n.cloud.Front.Count(changes...); (churns && got < 3*minutes) || churns != (got > 0) {
				t.Errorf("shrink delay %v: %d changes at EC2 in %d minutes", delay, got, minutes)
			}
			n.settle(12 * time.Second) // 62 s after the last pod ended
			n.wantLayout("1")
		})
	}
}
