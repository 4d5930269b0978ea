package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

func TestDrain(t *testing.T) {
	five := cloud.Limits{MaxENIs: 3, IPv4PerENI: 6, Prefixes: true} // five addresses per ENI
	index1 := ipam.Policy{WarmIP: 2, FirstInterfaceIndex: 1}
	primary := ENI{ID: "eni-0", Subnet: "old", Primary: true, Phase: Attached, Ours: true}
	now := func(index, n, used int) ENI {
		return ENI{ID: fmt.Sprintf("eni-%d", index), Subnet: "new", Index: index, Phase: Attached, Ours: true, Amount: addresses(n), Used: used, Free: addresses(n - used)}
	}
	old := func(index, n, used int) ENI {
		return with(now(index, n, used), func(e *ENI) { e.Subnet, e.Outdated = "old", true })
	}
	cooling := func(e ENI, n int) ENI {
		return with(e, func(e *ENI) { e.Cooling, e.Free.Addresses = n, e.Free.Addresses-n })
	}
	assign := func(index, n int) Action {
		return Action{Kind: Assign, ENI: fmt.Sprintf("eni-%d", index), Amount: addresses(n)}
	}
	unassign := func(index, n int) Action {
		return Action{Kind: Unassign, ENI: fmt.Sprintf("eni-%d", index), Amount: addresses(n)}
	}
	detach := func(index int) Action { return Action{Kind: Detach, ENI: fmt.Sprintf("eni-%d", index)} }
	create := func(index, n int) Action {
		return Action{Kind: Create, Subnet: "new", Index: index, Amount: addresses(n)}
	}
	for _, c := range []struct {
		name    string
		policy  ipam.Policy
		enis    []ENI
		waiting int
		change  func(*State)
		want    []Action
	}{
		{"others grow first", index1, []ENI{old(1, 5, 2)}, 0, nil, []Action{create(2, 2)}},
		{"then free addresses are released", index1, []ENI{old(1, 5, 2), now(2, 2, 0)}, 0, nil, []Action{unassign(1, 3)}},
		{"cooling addresses stay", index1, []ENI{cooling(old(1, 5, 2), 2), now(2, 2, 0)}, 0, nil, []Action{unassign(1, 1)}},
		{"ENI with only cooling addresses stays", index1, []ENI{cooling(old(1, 2, 0), 2), now(2, 2, 0)}, 0, nil, nil},
		{"empty ENI is detached", index1, []ENI{old(1, 5, 0), now(2, 2, 0)}, 0, nil, []Action{detach(1)}},
		{"ENI with a release in flight stays", index1, []ENI{with(old(1, 2, 0), func(e *ENI) { e.Withdrawn = addresses(1) }), now(2, 2, 0)}, 0, nil, []Action{unassign(1, 2)}},
		{"only the emptiest of two", index1, []ENI{old(1, 5, 1), old(2, 5, 3)}, 0, nil, []Action{unassign(1, 4)}},
		{"higher index of two equal ENIs", index1, []ENI{old(1, 5, 2), old(2, 5, 2)}, 0, nil, []Action{unassign(2, 3)}},
		{"both of two", index1, []ENI{old(1, 2, 1), old(2, 2, 1), now(3, 2, 0)}, 0, nil, []Action{unassign(2, 1), unassign(1, 1)}},
		{"waiting pods before releases", index1, []ENI{old(1, 5, 2), now(2, 0, 0)}, 1, nil, []Action{assign(2, 3)}},
		{"ENI with the only free addresses stays while pods wait", index1, []ENI{now(1, 5, 5), old(2, 5, 0)}, 1, nil, nil},
		{"outdated ENI serves waiting pods if no other can", index1, []ENI{now(1, 5, 5), old(2, 2, 2)}, 1, nil, []Action{assign(2, 1)}},
		{"outdated ENI serves waiting pods if none can be created", index1, []ENI{old(1, 2, 2)}, 3, func(s *State) { s.Subnets[0].ForNew = false }, []Action{assign(1, 3)}},
		{"outdated ENI gets no addresses for a warm target", index1, []ENI{old(1, 2, 1)}, 0, func(s *State) { s.Subnets[0].ForNew = false }, nil},
		{"idle node replaces the ENI with the only free addresses", index1, []ENI{now(1, 5, 5), old(2, 5, 0)}, 0, nil, []Action{detach(2)}},
		{"ENI without addresses is replaced while pods wait", index1, []ENI{now(1, 5, 5), old(2, 0, 0)}, 1, nil, []Action{detach(2)}},
		{"one at a time", index1, []ENI{old(1, 5, 0), old(2, 0, 0)}, 0, func(s *State) { s.ENIs[2].Phase = Detaching }, nil},
		{"no need for more addresses than max-pods", ipam.Policy{WarmIP: 2, FirstInterfaceIndex: 1, MaxPods: 5}, []ENI{now(1, 5, 4), old(2, 5, 1)}, 0, nil, []Action{unassign(2, 4)}},
		{"unreachable warm target does not block", ipam.Policy{WarmIP: 5, FirstInterfaceIndex: 1}, []ENI{now(1, 5, 2), old(2, 5, 2)}, 0, nil, []Action{unassign(2, 3)}},
		{"pods that would not fit elsewhere block", ipam.Policy{WarmIP: 5, FirstInterfaceIndex: 1}, []ENI{now(1, 5, 3), old(2, 5, 2)}, 0, nil, nil},
		{"full subnet for new ENIs blocks", ipam.Policy{WarmIP: 5, FirstInterfaceIndex: 1}, []ENI{now(1, 5, 2), old(2, 5, 2)}, 0, func(s *State) { s.Subnets[0].Free = 0 }, nil},
		{"pods of an outdated ENI count towards a cap", ipam.Policy{WarmIP: 5, FirstInterfaceIndex: 1, MaxPods: 4}, []ENI{old(1, 5, 3), now(2, 1, 0)}, 0, nil, []Action{unassign(1, 2)}},
		{"primary ENI stays", ipam.Policy{WarmIP: 2}, nil, 0, func(s *State) { s.ENIs[0] = with(old(0, 3, 0), func(e *ENI) { e.Primary = true }) }, nil},
		{"no addresses are moved onto an outdated ENI", ipam.Policy{MinimumIP: 4, FirstInterfaceIndex: 1}, []ENI{old(1, 1, 1), now(2, 3, 0)}, 0, nil, nil},
		{"detached outdated ENI is not attached", index1, nil, 0, func(s *State) {
			s.ENIs = append(s.ENIs, ENI{ID: "eni-9", Ours: true, Amount: addresses(2), Outdated: true})
		}, []Action{create(1, 2), {Kind: Delete, ENI: "eni-9"}}},
		{"prefixes, then single addresses", index1, []ENI{with(old(1, 2, 0), func(e *ENI) { e.Prefixes, e.Used, e.Free = 2, 1, cloud.Amount{Addresses: 2, Prefixes: 1} }), now(2, 2, 0)}, 0, nil, []Action{unassign(1, 2)}},
		{"primary address stays", index1, []ENI{with(old(1, 1, 1), func(e *ENI) { e.PrimaryServes, e.Free.Addresses = true, 1 }), now(2, 2, 0)}, 0, func(s *State) { s.ENIs[1].Addresses = 0 }, nil},
		{"other ENIs release the excess", index1, []ENI{old(1, 5, 4), now(2, 5, 1)}, 0, func(s *State) { s.Subnets[0].Free = 0; s.Release = 1 }, []Action{unassign(2, 1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := State{ENIs: append([]ENI{primary}, c.enis...), Subnets: []Subnet{{ID: "new", Free: 100, ForNew: true}, {ID: "old", Free: 100}}, Waiting: c.waiting, Drain: true}
			if c.change != nil {
				c.change(&s)
			}
			mustPlan(t, five, c.policy, s, c.want...)
			if free := Make(five, c.policy, s).Available - s.tally(c.policy).Used; free < c.waiting && len(c.want) == 0 {
				t.Errorf("%d pods are waiting for %d free addresses", c.waiting, free)
			}
		})
	}
}

// Without Drain, an outdated ENI does not change a plan.
func TestOutdatedWithoutDrainChangesNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newPairs(m5xlarge, rapid.SampledFrom([]ipam.Policy{{WarmIP: 2}, {WarmENI: 1}, {WarmIP: 3, FirstInterfaceIndex: 1}}).Draw(r, "policy"))
		for range rapid.IntRange(1, 8).Draw(r, "rounds") {
			w.waiting += rapid.IntRange(0, 20).Draw(r, "pods")
			w.end(rapid.Uint64().Draw(r, "seed"))
			s := w.state()
			before := fmt.Sprint(Make(w.limits, w.policy, s))
			for i := range s.ENIs {
				s.ENIs[i].Outdated = true
			}
			if after := fmt.Sprint(Make(w.limits, w.policy, s)); after != before {
				r.Fatalf("plan = %s, want that without outdated ENIs, %s", after, before)
			}
			if err := w.rest(); err != nil {
				r.Fatal(err)
			}
		}
	})
}

// end ends some pods.
func (w *pairs) end(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	for _, e := range w.enis {
		for s, n := range e.pods {
			e.pods[s] -= random.IntN(n + 1)
		}
	}
}

// outdated returns the number of outdated ENIs.
func (w *pairs) outdated() (n int) {
	for _, e := range w.enis {
		if e.Outdated {
			n++
		}
	}
	return n
}

// Whatever pods and settings do, draining ends: plans come to an end, pods wait only for reasons other than the
// drain, and no outdated ENI is left once no pod is.
func TestDrainsEnd(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newPairs(
			rapid.SampledFrom([]cloud.Limits{nitro, xen, m5xlarge, {MaxENIs: 4, IPv4PerENI: 6, IPv6PerENI: 6, Prefixes: true}, {MaxENIs: 2, IPv4PerENI: 4, IPv6PerENI: 4}}).Draw(r, "limits"),
			rapid.SampledFrom([]ipam.Policy{
				{WarmIP: 2}, {WarmENI: 1, WarmPrefix: 1}, {WarmIP: 3, MinimumIP: 8}, {WarmIP: 1, MaxPods: 7}, {WarmENI: 1, FirstInterfaceIndex: 1, MaxENI: 3},
				{Dialect: ipam.Cilium, PreAllocate: 3, MaxAboveWatermark: 2, FirstInterfaceIndex: 1}, {Dialect: ipam.Cilium, PreAllocate: 3, MinAllocate: 30, FirstInterfaceIndex: 1},
			}).Draw(r, "policy"),
		)
		w.policy.PrefixDelegation = rapid.Bool().Draw(r, "prefixes")
		if w.limits.IPv6PerENI > 0 {
			w.policy.Families = rapid.SampledFrom([]ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual}).Draw(r, "families")
		}
		w.trunk.Branches = true
		settle := func() {
			if err := w.rest(); err != nil {
				r.Fatal(err)
			}
			if reason, _ := Shortage(w.limits, w.policy, w.state()); w.waiting > 0 && reason == "" {
				r.Fatalf("%d pods wait without a reported reason: %+v", w.waiting, w.state())
			}
		}
		settle()
		for range rapid.IntRange(1, 12).Draw(r, "rounds") {
			switch rapid.IntRange(0, 6).Draw(r, "what") {
			case 6:
				w.trunk.Wanted = rapid.Bool().Draw(r, "trunk")
			case 0:
				w.drain = true
				w.subnet = Subnet{ID: fmt.Sprintf("subnet-%d", w.made+2), Free: rapid.SampledFrom([]int{0, 2, 20, 10_000}).Draw(r, "free"), ForNew: true}
				for _, e := range w.enis {
					e.Outdated = !e.Primary && !e.Trunk
				}
			case 1:
				w.drain = rapid.Bool().Draw(r, "drain")
			case 2, 3: // some pods start meanwhile
				for range rapid.IntRange(1, 9).Draw(r, "pods") {
					w.waiting++
					w.place()
					if err := w.steps(rapid.IntRange(0, 2).Draw(r, "steps")); err != nil {
						r.Fatal(err)
					}
				}
			default:
				w.end(rapid.Uint64().Draw(r, "seed"))
			}
			w.place()
			settle()
		}
		w.drain, w.subnet.Free, w.waiting = true, 10_000, 0
		for _, e := range w.enis {
			clear(e.pods)
		}
		settle()
		if n := w.outdated(); n > 0 {
			r.Fatalf("%d outdated ENIs are left without pods: %+v", n, w.state())
		}
	})
}

// A node with pods on all ENIs replaces all outdated ENIs as pods come and go, and no pod waits for longer than one
// more plan.
func TestRollingDrain(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newPairs(cloud.Limits{MaxENIs: 4, IPv4PerENI: 6}, rapid.SampledFrom([]ipam.Policy{
			{WarmIP: 2, FirstInterfaceIndex: 1}, {WarmENI: 1}, {Dialect: ipam.Cilium, PreAllocate: 8, FirstInterfaceIndex: 1},
		}).Draw(r, "policy"))
		running := rapid.IntRange(1, 9).Draw(r, "pods")
		w.with(t, 15)
		w.drain, w.subnet.ID = true, "subnet-2"
		for _, e := range w.enis {
			e.Outdated = !e.Primary
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		for range 200 {
			var busy []*pairENI
			pods := 0
			for _, e := range w.enis {
				if n := e.pods[w.policy.Families]; n > 0 {
					busy, pods = append(busy, slices.Repeat([]*pairENI{e}, n)...), pods+n
				}
			}
			if pods > 0 {
				busy[random.IntN(len(busy))].pods[w.policy.Families]--
			}
			if err := w.rest(); err != nil {
				r.Fatal(err)
			}
			if pods <= running {
				w.waiting++
				w.place()
			}
			if err := w.rest(); err != nil || w.waiting > 0 {
				r.Fatalf("%d pods wait, error %v: %+v", w.waiting, err, w.state())
			}
		}
		if n := w.outdated(); n > 0 {
			r.Fatalf("%d outdated ENIs are left: %+v", n, w.state())
		}
	})
}

// end ends pods, whose addresses then cool down.
func (s *sim) end(pods ...int) {
	for _, k := range pods {
		s.alloc.Release(k, s.now)
	}
	s.now = s.now.Add(ipam.DefaultCooling)
	s.alloc.Expire(s.now)
}

// 49 pods run on a t3.small with prefixes. The last one, on the second ENI, ends last. The node then needs one
// prefix, on the first ENI.
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
	s.wants("without pods", "16")
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
		{"prefix", prefixes, forNew[0], []ENI{prefix(0, 0, 0), prefix(1, 1, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: blocks(1)}}},
		{"addresses kept by a minimum", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(2)}}},
		{"from the highest index", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 1, 0), singles(2, 1, 0)}, []Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(1)}}},
		{"to several ENIs", ipam.Policy{MinimumIP: 6}, forNew[0], []ENI{singles(0, 2, 0), singles(1, 2, 0), singles(2, 2, 0)},
			[]Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(1)}, {Kind: Assign, ENI: "eni-1", Amount: addresses(1)}}},
		{"not an address in use", minimum, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 1)}, nil},
		{"not without room", ipam.Policy{MinimumIP: 5}, forNew[0], []ENI{singles(0, 3, 0), singles(1, 2, 0)}, nil},
		{"not with a full subnet", minimum, Subnet{ID: "s1", Free: 1}, []ENI{singles(0, 1, 0), singles(1, 2, 0)}, nil},
		{"no single addresses instead of a prefix", prefixes, Subnet{ID: "s1", Free: 100, NoPrefix: true}, []ENI{prefix(0, 0, 0), prefix(1, 1, 0)}, nil},
		{"not with warm ENIs", ipam.Policy{WarmENI: 1}, forNew[0], []ENI{singles(0, 1, 0), singles(1, 2, 0)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := State{ENIs: c.enis, Subnets: []Subnet{c.subnet}}
			if len(c.want) > 0 {
				mustPlan(t, t3small, c.policy, s) // not before the delay has passed
			}
			s.Moves = true
			mustPlan(t, t3small, c.policy, s, c.want...)
			check.Equal(t, Movable(t3small, c.policy, s), len(c.want) > 0, "movable")
		})
	}
}

// Whatever pods do, a node that has met the policy never falls below it again, the plan comes to rest, and at rest no
// ENI could be spared.
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
				b := newPlanner(l, p, s.state())
				if _, room := b.places.free(); len(running) < 3*slots(ipfamily.IPv4, l) || room {
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
					r.Fatalf("%v leaves too few addresses: %s", a, s.layout())
				} else {
					had = now
				}
			}
			before := s.made
			for _, a := range s.converge() {
				if a.Kind == Create {
					r.Fatalf("unexpected action %v: pods only ended", a)
				}
			}
			s.after = nil
			st := s.state()
			if again := s.converge(); len(again) > 0 || s.made != before {
				r.Fatalf("further actions at rest: %v", again)
			}
			if Movable(l, p, st) {
				r.Fatalf("ENI could be spared at rest: %s", s.layout())
			}
		}
	})
}
