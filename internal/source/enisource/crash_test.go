package enisource

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

// killer stops the daemon at an armed failpoint.
type killer struct {
	stop func()
	hits int
}

func (k *killer) Acted(_ plan.Action, _ cloud.Class, err error, _ time.Duration) {
	if errors.Is(err, failpoint.ErrHit) {
		k.hits++
		k.stop()
	}
}

func (*killer) Collected(eni.Collected) {}

func (*killer) Reconciled(time.Duration) {}

// arm has the next n starts die at failpoints.
func (n *node) arm() *killer {
	k := &killer{stop: func() { n.stop() }}
	n.tune = func(c *eni.Config) { c.Observer = k }
	return k
}

// restartDead starts the daemon again if it died.
func (n *node) restartDead() {
	synctest.Wait()
	select {
	case <-n.done:
		n.start()
	default:
	}
}

// finalCheck checks that EC2 and the node agree on every address.
func (n *node) finalCheck() {
	n.t.Helper()
	n.check()
	have := map[string]bool{}
	for _, a := range n.Snapshot().Addresses {
		if a.Prefix.Bits() != 80 {
			have[a.Addr.String()] = true
		}
	}
	total := 0
	for _, e := range n.cloud.State.Truth() {
		if e.Attachment == nil {
			n.t.Errorf("%s is left detached", e.ID)
			continue
		}
		if !e.Attachment.DeleteOnTermination {
			n.t.Errorf("%s would outlive its instance", e.ID)
		}
		for _, p := range things(e) {
			switch f := ipfamily.Of(p.Addr()); {
			case f == ipfamily.IPv6 && (!p.IsSingleIP() || primary(e) || !n.policy.Families.Has(f)):
				// A /80 is not listed, and the others are not for pods.
			case !n.policy.Families.Has(f):
				n.t.Errorf("%v is assigned, and no pod is to have it", p)
			case !have[p.Addr().String()]:
				n.t.Errorf("%v is assigned and in no snapshot", p)
			default:
				total += plan.CountOf(f, cloud.AmountOf([]netip.Prefix{p}))
			}
		}
	}
	if total != len(have) {
		n.t.Errorf("EC2 has %d addresses, the node %d", total, len(have))
	}
}

// The daemon dies at each step of growing and shrinking in turn, and is started again. Nothing leaks,
// and nothing is done twice.
func TestCrashAtEveryStep(t *testing.T) {
	tried := 0
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "eni.") || strings.HasPrefix(point, "eni.collect") {
			continue
		}
		tried++
		for _, lag := range []time.Duration{0, 2 * time.Second} {
			for _, set := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv6} {
				t.Run(fmt.Sprintf("%s/lag=%v/%s", point, lag, set), func(t *testing.T) {
					policy, want, itype := ipam.Policy{WarmIP: 1, Families: set}, "1", "t3.small"
					if strings.HasPrefix(point, "eni.tag") { // an ENI to adopt must be needed
						policy, want = ipam.Policy{MinimumIP: 4, Families: set}, "3,1"
					}
					if set == ipfamily.OnlyIPv6 { // one without prefixes, as with them there is nothing to grow
						itype, want = "t2.small", strings.ReplaceAll(want, "3,1", "4")
						want = "0," + want
					}
					bubble(t, itype, policy, func(t *testing.T, n *node) {
						if strings.HasPrefix(point, "eni.tag") {
							n.cloud.State.AddENI(instance, 1, cloud.InterfaceOrdinary,
								map[string]string{eni.TagCluster: "test", eni.TagOwner: eni.Owner, eni.TagInstanceID: "i-before"})
						}
						restore := check.Must(failpoint.Set(point + "=error@1"))(t)
						defer restore()
						k := n.arm()
						n.cloud.State.SetLag(lag)
						n.cloud.State.SetAttachTime(time.Second)
						n.startAndSettle(time.Second)
						n.restartDead()
						if failed := n.burst(0, 7, 5*time.Second); failed > 0 {
							n.restartDead()
							for i := range 7 {
								if _, ok := n.leases[key(i)]; !ok {
									n.add(i, 45*time.Second) // as a runtime tries again
								}
							}
						}
						n.settle(10 * time.Second)
						n.check()
						n.delAll(0, 7)
						for range 60 {
							n.settle(5 * time.Second)
							n.restartDead()
						}
						n.finalCheck()
						n.wantLayout(want)
						check.Equal(t, k.hits, 1, "hits of the failpoint")
					})
				})
			}
		}
	}
	if tried < 16 {
		t.Errorf("only %d failpoints are registered", tried)
	}
}

var troubleSeed = flag.Uint64("trouble.seed", 0, "run TestRandomTrouble with this seed alone")

// Random pods, faults, lag and deaths; once they stop, EC2 and the node must agree.
func TestRandomTrouble(t *testing.T) {
	if *troubleSeed != 0 {
		randomTrouble(t, *troubleSeed)
		return
	}
	for range 40 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { randomTrouble(t, seed) })
	}
}

func randomTrouble(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	policies := []ipam.Policy{ipam.DefaultAWS(), {WarmIP: 2}, {WarmIP: 1, MinimumIP: 6}, {Dialect: ipam.Cilium, PreAllocate: 3, MaxAboveWatermark: 2, FirstInterfaceIndex: 1},
		{PrefixDelegation: true, WarmPrefix: 1}, {PrefixDelegation: true, WarmIP: 3, MaxPods: 30}}
	policy := policies[rng.IntN(len(policies))]
	policy.Families = []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv6}[rng.IntN(3)]
	bubble(t, []string{"t3.small", "m5.xlarge", "t2.medium"}[rng.IntN(3)], policy, func(t *testing.T, n *node) {
		n.arm()
		n.cloud.State.SetLag(time.Duration(rng.IntN(4)) * time.Second)
		n.cloud.State.SetAttachTime(time.Duration(rng.IntN(5)) * time.Second)
		n.cloud.Front.SetLatency("", time.Duration(rng.IntN(200))*time.Millisecond)
		n.start()
		live := map[int]bool{}
		next := 0
		for range 60 {
			n.chaos(rng)
			for range rng.IntN(6) {
				if _, err := n.try(next, time.Duration(rng.IntN(8))*time.Second); err == nil {
					live[next] = true
				} else if ex, ok := errors.AsType[*source.Exhausted](err); !ok || ex.Reason == "" {
					t.Fatalf("a failure without a reason: %v", err)
				}
				next++
			}
			for i := range live {
				if rng.IntN(3) == 0 {
					n.del(i)
					delete(live, i)
				}
			}
			n.settle(time.Duration(rng.IntN(40)) * time.Second)
			n.restartDead()
			n.check()
		}
		failpointsOff(t)
		n.cloud.Front.ClearFaults()
		n.cloud.State.SetFragmented("subnet-1", false)
		n.restartDead()
		for range 80 {
			n.settle(10 * time.Second)
			n.restartDead()
		}
		n.finalCheck()
	})
}

// chaos adds one piece of trouble.
func (n *node) chaos(rng *rand.Rand) {
	classes := []cloud.Class{cloud.Throttled, cloud.Transient, cloud.Transient, cloud.Conflict, cloud.Permission, cloud.LimitReached}
	n.cloud.State.SetFragmented("subnet-1", rng.IntN(3) == 0)
	switch rng.IntN(4) {
	case 0:
		n.cloud.Front.Inject(cloudfake.Fault{Op: changes[rng.IntN(len(changes))], Times: 1 + rng.IntN(3), Err: cloudfake.Err(cloud.Transient, ""), After: true})
	case 1:
		n.cloud.Front.Inject(cloudfake.Fault{Op: changes[rng.IntN(len(changes))], Times: 1 + rng.IntN(3), Err: cloudfake.Err(classes[rng.IntN(len(classes))], "Injected")})
	case 2:
		names := failpoint.Names()
		if _, err := failpoint.Set(names[rng.IntN(len(names))] + "=error@1"); err != nil {
			n.t.Fatal(err)
		}
	case 3:
		n.kill()
		n.start()
	}
}

func failpointsOff(t *testing.T) {
	if _, err := failpoint.Set(""); err != nil {
		t.Fatal(err)
	}
}
