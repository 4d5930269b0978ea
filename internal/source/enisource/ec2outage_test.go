package enisource

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// Pods that wait while EC2 is away have addresses within seconds of its return,
// and the node does not call it all the time meanwhile. Each way to notice it,
// a lost assignment and a lost creation, has its own gate.
func TestEC2ReturnsToWaitingPods(t *testing.T) {
	const away, most = 30 * time.Second, 6 * time.Second
	for name, pods := range map[string]int{"assign": 4, "create": 40} {
		t.Run(name, func(t *testing.T) {
			var sum, worst time.Duration
			const seeds = 20
			for seed := range uint64(seeds) {
				bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 2}, func(t *testing.T, n *node) {
					n.tune = func(c *eni.Config) { c.Rand = rand.New(rand.NewPCG(seed, 0)) }
					n.start()
					n.settle(time.Second)
					if pods > 15 {
						n.burst(0, 14, time.Second) // as many as the first ENI takes
						n.settle(time.Minute)
					}
					n.cloud.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
					n.cloud.Front.ResetCalls()
					failed := make(chan int)
					var took time.Duration
					begin := time.Now()
					go func() {
						f := n.burst(100, 100+pods, 2*time.Minute)
						took = time.Since(begin) - away
						failed <- f
					}()
					n.settle(away)
					if got := len(n.cloud.Front.Calls()); got > 25 {
						t.Errorf("%d calls within %v in which all fail", got, away)
					}
					n.cloud.Front.ClearFaults()
					if f := <-failed; f > 0 {
						t.Errorf("%d pods of %d got no address", f, pods)
					}
					sum, worst = sum+took, max(worst, took)
				})
			}
			t.Logf("after %v on average, %v at worst", sum/seeds, worst)
			if worst > most {
				t.Errorf("pods waited for %v after EC2 was back, want at most %v", worst, most)
			}
		})
	}
}
