package plan

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

// end ends pods, and has their addresses cool.
func (s *sim) end(pods ...int) {
	for _, k := range pods {
		s.alloc.Release(k, s.now)
	}
	s.now = s.now.Add(ipam.DefaultCooling)
	s.alloc.Expire(s.now)
}

// 49 pods run on a t3.small with prefixes. The last one runs on the second ENI, and is the last to end.
// The node then needs one prefix, on the first ENI.
func TestWarmPrefixMovesToTheFirstENI(t *testing.T) {
	s := newSim(t, t3small, ipam.Policy{PrefixDelegation: true, WarmIP: 1, MinimumIP: 1})
	s.release = true
	s.runPods(49)
	s.wants("with 49 pods", "48,16")
	for k := range 48 {
		s.alloc.Release(k, s.now)
	}
	s.end()
	s.converge()
	s.wants("with one pod on the second ENI", "0,16")
	s.end(48)
	s.converge()
	s.wants("at rest", "16")
}

func TestMove(t *testing.T) {
	singles := func(index, n, used int) ENI {
		return ENI{ID: "eni-" + string(rune('0'+index)), Subnet: "s1", Index: index, Primary: index == 0, Phase: Attached, Ours: true, Amount: addresses(n), Used: used, Free: addresses(n - used)}
	}
	prefix := func(index, n, used int) ENI {
		return with(singles(index, 0, used), func(e *ENI) { e.Prefixes, e.Free.Prefixes = n, n-min(1, used) })
	}
	minimum := ipam.Policy{MinimumIP: 3, WarmIP: 1}
	prefixes := ipam.Policy{PrefixDelegation: true, WarmIP: 1, MinimumIP: 1}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		subnet Subnet
		enis   []ENI
		want   []Action
	}{
		{"a prefix", prefixes, forNew[0], []ENI{prefix(0, 0, 0), prefix(1, 1, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: blocks(1)}}},
		{"addresses that a minimum keeps", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(2)}}},
		{"the highest index", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 1, 0), singles(2, 1, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(1)}}},
		{"to several", ipam.Policy{MinimumIP: 6}, forNew[0], []ENI{singles(0, 2, 0), singles(1, 2, 0), singles(2, 2, 0)},
			[]Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(1)}, {Kind: Assign, ENI: "eni-1", Amount: addresses(1)}}},
		{"not what a pod has", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 1)}, nil},
		{"not without room", ipam.Policy{MinimumIP: 5}, forNew[0], []ENI{singles(0, 3, 0), singles(1, 2, 0)}, nil},
		{"not in a full subnet", minimum, Subnet{ID: "s1", Free: 1}, []ENI{singles(0, 1, 0), singles(1, 2, 0)}, nil},
		{"no single addresses in place of a prefix", prefixes, Subnet{ID: "s1", Free: 100, NoPrefix: true}, []ENI{prefix(0, 0, 0), prefix(1, 1, 0)}, nil},
		{"not where ENIs are warm as a whole", ipam.Policy{WarmENI: 1}, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 0)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := State{ENIs: c.enis, Subnets: []Subnet{c.subnet}}
			if len(c.want) > 0 {
				mustPlan(t, t3small, c.policy, s) // nothing before it has been so for a while
			}
			s.Moves = true
			mustPlan(t, t3small, c.policy, s, c.want...)
			check.Equal(t, Movable(t3small, c.policy, s), len(c.want) > 0, "movable")
		})
	}
}

// Whatever pods did, the node never falls below the policy again once it has met it, the plan comes to
// rest, and at rest no ENI could be spared.
func TestPlanAtRestStaysAtRest(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := rapid.SampledFrom([]cloud.Limits{t3small, m5xlarge, {MaxENIs: 4, IPv4PerENI: 6, Prefixes: true}}).Draw(r, "limits")
		p := rapid.SampledFrom([]ipam.Policy{
			{WarmIP: 1, MinimumIP: 1}, {WarmIP: 2, MinimumIP: 7}, {WarmIP: 1, MinimumIP: 20}, {WarmPrefix: 1, WarmENI: 1},
			{Dialect: ipam.Cilium, PreAllocate: 3, MaxAboveWatermark: 2}, {Dialect: ipam.Cilium, PreAllocate: 2, FirstInterfaceIndex: 1},
		}).Draw(r, "policy")
		p.PrefixDelegation = rapid.Bool().Draw(r, "prefixes")
		s := newSim(r, l, p)
		s.release = true
		enough := func() bool {
			t := s.state().tally(p)
			return t.total >= Demand(l, p, t.Usage).Want
		}
		s.converge()
		running := map[int]bool{}
		for range rapid.IntRange(1, 12).Draw(r, "rounds") {
			for range rapid.IntRange(0, 12).Draw(r, "start") {
				if _, room := newPlanner(l, p, s.state()).places.free(); len(running) < 3*slots(ipfamily.IPv4, l) || room {
					running[s.pods] = true
					s.waiting++
					s.sync()
					s.converge()
				}
				if s.waiting > 0 { // the instance is full
					delete(running, s.pods)
					s.waiting = 0
				}
			}
			for _, k := range slices.Sorted(maps.Keys(running)) {
				if rapid.Bool().Draw(r, "end") {
					s.alloc.Release(k, s.now)
					delete(running, k)
				}
			}
			s.end()
			had := enough()
			s.after = func(a Action) {
				if now := enough(); had && !now {
					r.Fatalf("%v leaves %s", a, s.layout())
				} else {
					had = now
				}
			}
			before := s.made
			for _, a := range s.converge() {
				if a.Kind == Create {
					r.Fatalf("%v although pods only ended", a)
				}
			}
			s.after = nil
			st := s.state()
			if again := s.converge(); len(again) > 0 || s.made != before {
				r.Fatalf("not at rest: %v", again)
			}
			if Movable(l, p, st) {
				r.Fatalf("at rest an ENI could go: %s", s.layout())
			}
		}
	})
}
