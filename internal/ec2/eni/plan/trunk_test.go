package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// five is the limits of an instance type with four ENIs besides the primary, each with five addresses.
var five = cloud.Limits{MaxENIs: 5, IPv4PerENI: 6, Prefixes: true}

func TestTrunk(t *testing.T) {
	yes := Trunk{Wanted: true, Branches: true}
	primary := with(eni0, func(e *ENI) { e.Subnet = "home" })
	eni := func(index, used int) ENI {
		return ENI{ID: fmt.Sprintf("eni-%d", index), Subnet: "s1", Index: index, Phase: Attached, Ours: true, Amount: addresses(5), Used: used, Free: addresses(5 - used)}
	}
	trunk := func(id string, index int, p Phase) ENI {
		return ENI{ID: id, Subnet: "home", Index: index, Phase: p, Ours: true, Trunk: true}
	}
	foreign := func(e ENI) ENI { e.Ours = false; return e }
	create := func(index int) Action { return Action{Kind: CreateTrunk, Subnet: "home", Index: index} }
	grow := func(index, n int) Action {
		return Action{Kind: Create, Subnet: "s1", Index: index, Amount: addresses(n)}
	}
	attach := func(id string, index int) Action { return Action{Kind: AttachTrunk, ENI: id, Index: index} }
	detach := func(id string) Action { return Action{Kind: DetachTrunk, ENI: id} }
	first := func(n int) ipam.Policy { return ipam.Policy{Dialect: ipam.Cilium, FirstInterfaceIndex: n} }
	warm := ipam.Policy{FirstInterfaceIndex: 1, WarmIP: 1}
	for _, c := range []struct {
		name    string
		policy  ipam.Policy
		trunk   Trunk
		enis    []ENI
		waiting int
		change  func(*State)
		want    []Action
		reason  string
	}{
		{"not configured", first(1), Trunk{Branches: true}, nil, 0, nil, nil, ""},
		{"wanted", first(1), yes, nil, 0, nil, []Action{create(4)}, ReasonPending},
		{"index below those of ENIs for pods", first(3), yes, nil, 0, nil, []Action{create(1)}, ReasonPending},
		{"that index is taken", first(2), yes, []ENI{foreign(eni(1, 0))}, 0, nil, []Action{create(4)}, ReasonPending},
		{"highest free index", first(1), yes, []ENI{foreign(eni(4, 0))}, 0, nil, []Action{create(3)}, ReasonPending},
		{"eth0 serves pods", first(0), yes, []ENI{eni(1, 5), eni(2, 5), eni(3, 5)}, 0, nil, []Action{create(4)}, ReasonPending},
		{"demand of pods comes first", warm, yes, nil, 9, nil, []Action{grow(1, 5), grow(2, 5), create(4)}, ReasonPending},
		{"demand of pods does not take the trunk's slot", warm, yes, nil, 99, nil, []Action{grow(1, 5), grow(2, 5), grow(3, 5), create(4)}, ReasonPending},
		{"nor does an unattached ENI", warm, yes, []ENI{eni(1, 5), eni(2, 5), eni(3, 5), {ID: "eni-8", Subnet: "s1", Ours: true, Amount: addresses(5)}}, 9, nil,
			[]Action{create(4), {Kind: Delete, ENI: "eni-8"}}, ReasonPending},
		{"trunk present, no slot left", warm, yes, []ENI{trunk("eni-t", 4, Attached), eni(1, 5), eni(2, 5), eni(3, 5)}, 9, nil, nil, ""},
		{"trunk attaching", first(1), yes, []ENI{trunk("eni-t", 1, Attached)}, 0, nil, nil, ""},
		{"trunk has no addresses for pods", ipam.Policy{WarmIP: 1}, yes, []ENI{with(trunk("eni-t", 1, Attached), func(e *ENI) { e.Amount = addresses(5) })}, 0, nil,
			[]Action{{Kind: Assign, ENI: "eni-0", Amount: addresses(1)}}, ""},
		{"attributes are corrected", first(1), yes, []ENI{with(trunk("eni-t", 4, Attached), func(e *ENI) { e.WrongDeleteOnTermination = true })}, 0, nil,
			[]Action{{Kind: SetDeleteOnTermination, ENI: "eni-t"}}, ""},
		{"created but not attached", first(1), yes, []ENI{trunk("eni-t", 0, Detached)}, 0, nil, []Action{attach("eni-t", 4)}, ReasonPending},
		{"two created but not attached", first(1), yes, []ENI{trunk("eni-u", 0, Detached), trunk("eni-t", 0, Detached)}, 0, nil,
			[]Action{attach("eni-t", 4), {Kind: Delete, ENI: "eni-u"}}, ReasonPending},
		{"detached trunk next to an attached one", first(1), yes, []ENI{trunk("eni-u", 4, Attached), trunk("eni-t", 0, Detached)}, 0, nil, []Action{{Kind: Delete, ENI: "eni-t"}}, ""},
		{"detached trunk recently created by another process", first(1), yes, []ENI{trunk("eni-u", 4, Attached), with(trunk("eni-t", 0, Detached), func(e *ENI) { e.JustMade = true })}, 0, nil, nil, ""},
		{"two attached trunks", first(1), yes, []ENI{trunk("eni-u", 1, Attached), trunk("eni-t", 4, Attached)}, 0, nil, []Action{detach("eni-u")}, ""},
		{"two attached trunks with branches", first(1), yes, []ENI{trunk("eni-u", 1, Attached), trunk("eni-t", 4, Attached)}, 0, func(s *State) { s.Trunk.Busy = true }, nil, ""},
		{"detaching trunk keeps its slot", warm, yes, []ENI{trunk("eni-t", 4, Detaching), eni(1, 5), eni(2, 5), eni(3, 5)}, 9, nil, nil, ReasonPending},
		{"no second slot while detaching", warm, yes, []ENI{trunk("eni-t", 4, Detaching), eni(1, 5), eni(2, 5)}, 9, nil, []Action{grow(3, 5)}, ReasonPending},
		{"unattached trunk is not supply for pods", warm, yes, []ENI{trunk("eni-t", 0, Detached)}, 9, nil, []Action{grow(1, 5), grow(2, 5), attach("eni-t", 4)}, ReasonPending},
		{"unattachable trunk is deleted first", first(1), yes, []ENI{with(trunk("eni-t", 0, Detached), func(e *ENI) { e.Refused = true })}, 0, nil,
			[]Action{{Kind: Delete, ENI: "eni-t"}}, ReasonPending},
		{"several attachments refused", first(1), yes, nil, 0, func(s *State) { s.Trunk.Refused = true }, nil, ReasonRefused},
		{"several attachments refused, one trunk detached", first(1), yes, []ENI{trunk("eni-t", 0, Detached)}, 0, func(s *State) { s.Trunk.Refused = true }, nil, ReasonRefused},
		{"EC2 refuses more ENIs", first(1), yes, nil, 0, func(s *State) { s.NoMoreENIs = true }, nil, ReasonNoRoom},
		{"no longer configured", first(1), Trunk{Branches: true}, []ENI{trunk("eni-t", 4, Attached)}, 0, nil, []Action{detach("eni-t")}, ""},
		{"no longer configured, with branches", first(1), Trunk{Busy: true}, []ENI{trunk("eni-t", 4, Attached)}, 0, nil, nil, ReasonHasBranches},
		{"no longer configured, detached", first(1), Trunk{}, []ENI{trunk("eni-t", 0, Detached)}, 0, nil, []Action{{Kind: Delete, ENI: "eni-t"}}, ""},
		{"instance type without branches", warm, Trunk{Wanted: true}, nil, 99, nil, []Action{grow(1, 5), grow(2, 5), grow(3, 5), grow(4, 5)}, ReasonNoBranches},
		{"instance type without branches, trunk present", first(1), Trunk{Wanted: true}, []ENI{trunk("eni-t", 4, Attached)}, 0, nil, nil, ""},
		{"foreign trunk", warm, yes, []ENI{foreign(trunk("eni-x", 4, Attached))}, 99, nil, []Action{grow(1, 5), grow(2, 5), grow(3, 5)}, ReasonOtherTrunk},
		{"unattached trunk and foreign trunk", first(1), yes, []ENI{foreign(trunk("eni-x", 4, Attached)), trunk("eni-t", 0, Detached)}, 0, nil,
			[]Action{{Kind: Delete, ENI: "eni-t"}}, ReasonOtherTrunk},
		{"detached foreign trunk", first(1), yes, []ENI{foreign(trunk("eni-x", 0, Detached))}, 0, nil, []Action{create(4)}, ReasonPending},
		{"all slots used by pods", warm, yes, []ENI{eni(1, 5), eni(2, 1), eni(3, 1), eni(4, 1)}, 0, nil, nil, ReasonNoRoom},
		{"all slots used by a warm target", ipam.Policy{FirstInterfaceIndex: 1, WarmIP: 9}, yes, []ENI{eni(1, 5), eni(2, 5), eni(3, 5), eni(4, 0)}, 0, unlimited, nil, ReasonNoRoom},
		{"ENI in excess makes room", warm, yes, []ENI{eni(1, 3), eni(2, 5), eni(3, 5), eni(4, 0)}, 0, unlimited, []Action{{Kind: Detach, ENI: "eni-4"}, {Kind: Unassign, ENI: "eni-1", Amount: addresses(1)}}, ReasonNoRoom},
		{"excess has not lasted", warm, yes, []ENI{eni(1, 3), eni(2, 5), eni(3, 5), eni(4, 0)}, 0, nil, nil, ReasonNoRoom},
		{"MAX_ENI counts the future trunk", ipam.Policy{FirstInterfaceIndex: 1, WarmIP: 1, MaxENI: 3}, yes, nil, 99, nil, []Action{grow(1, 5), create(4)}, ReasonPending},
		{"MAX_ENI counts the trunk", ipam.Policy{FirstInterfaceIndex: 1, WarmIP: 1, MaxENI: 3}, yes, []ENI{trunk("eni-t", 4, Attached)}, 99, nil, []Action{grow(1, 5)}, ""},
		{"MAX_ENI reached", ipam.Policy{FirstInterfaceIndex: 1, WarmIP: 1, MaxENI: 2}, yes, []ENI{eni(1, 1)}, 0, nil, nil, ReasonNoRoom},
		{"subnet of the primary full", first(1), yes, nil, 0, func(s *State) { s.Subnets[1].Free = 0 }, nil, ReasonTrunkSubnet},
		{"unused outdated ENI makes room", warm, yes, []ENI{eni(1, 5), eni(2, 5), eni(3, 5), with(eni(4, 0), func(e *ENI) { e.Outdated = true })}, 0, drained,
			[]Action{{Kind: Detach, ENI: "eni-4"}}, ReasonNoRoom},
		{"detaching trunk does not stop a drain", warm, Trunk{}, []ENI{eni(1, 5), eni(2, 5), with(eni(3, 0), func(e *ENI) { e.Outdated = true }), trunk("eni-t", 4, Detaching)}, 0, drained,
			[]Action{{Kind: Detach, ENI: "eni-3"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := State{ENIs: append([]ENI{primary}, c.enis...), Subnets: []Subnet{{ID: "s1", Free: 1000, ForNew: true}, {ID: "home", Free: 1}}, Waiting: c.waiting, Trunk: c.trunk}
			if c.change != nil {
				c.change(&s)
			}
			mustPlan(t, five, c.policy, s, c.want...)
			if reason, message := TrunkTrouble(five, c.policy, s); reason != c.reason || (message == "") != (reason == "") {
				t.Errorf("reason = %s (%s), want %q", reason, message, c.reason)
			}
			check.Equal(t, Make(five, c.policy, s).Exhausted, c.reason == ReasonTrunkSubnet, "exhausted")
		})
	}
}

func unlimited(s *State) { s.Release, s.Moves = Unlimited, true }

func drained(s *State) { s.Drain = true }

func TestWeightOfATrunk(t *testing.T) {
	check.Equal(t, (Action{Kind: CreateTrunk}).Weight(), 1, "subnet addresses taken by a new trunk")
}

// The message names the remedy.
func TestTrunkTroubleNamesTheRemedy(t *testing.T) {
	full := State{Trunk: Trunk{Wanted: true, Branches: true}, ENIs: []ENI{eni0, {ID: "eni-1", Index: 1, Phase: Attached, Ours: true}}, Subnets: forNew}
	_, message := TrunkTrouble(five, ipam.Policy{MaxENI: 2}, full)
	if !strings.Contains(message, "may have (2)") || !strings.Contains(message, "raise MAX_ENI") {
		t.Error(message)
	}
	full.ENIs[1] = ENI{ID: "eni-x", Index: 1, Phase: Attached, Trunk: true}
	if _, message = TrunkTrouble(five, ipam.Policy{}, full); !strings.Contains(message, "eni-x is a trunk that Berth did not create") {
		t.Error(message)
	}
}

// Whatever pods and settings do, plans with a trunk end. At rest a configured trunk exists, unless all slots are
// taken; ENIs for pods never take its slot once it existed; without pods it always exists.
func TestTrunkComesToBe(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newPairs(
			rapid.SampledFrom([]cloud.Limits{m5xlarge, five, {MaxENIs: 3, IPv4PerENI: 4}}).Draw(r, "limits"),
			rapid.SampledFrom([]ipam.Policy{
				{WarmIP: 2}, {WarmENI: 1, WarmPrefix: 1}, {WarmIP: 3, FirstInterfaceIndex: 1}, {WarmIP: 1, FirstInterfaceIndex: 2}, {WarmENI: 1, MaxENI: 3},
				{Dialect: ipam.Cilium, PreAllocate: 3, FirstInterfaceIndex: 1},
			}).Draw(r, "policy"),
		)
		w.policy.PrefixDelegation = rapid.Bool().Draw(r, "prefixes")
		there := func() bool {
			return slices.ContainsFunc(w.enis, func(e *pairENI) bool { return e.Trunk && e.Phase == Attached })
		}
		settle := func() {
			lacks := w.state().lacksTrunk()
			b := plannerOf(w.limits, w.policy, w.state())
			_, room := b.places.forTrunk()
			if err := w.rest(); err != nil {
				r.Fatal(err)
			}
			if len(w.enis) > w.limits.MaxENIs || w.policy.MaxENI > 0 && len(w.enis) > w.policy.MaxENI {
				r.Fatalf("%d ENIs exceed the limits: %+v", len(w.enis), w.state())
			}
			if lacks && room && !there() {
				r.Fatalf("slot of the trunk was lost: %+v", w.state())
			}
			reason, _ := TrunkTrouble(w.limits, w.policy, w.state())
			if want := w.trunk.Wanted && !there(); want != (reason == ReasonNoRoom) || !w.trunk.Wanted && there() {
				r.Fatalf("unexpected trunk state at rest, reason %q: %+v", reason, w.state())
			}
			if reason, _ := Shortage(w.limits, w.policy, w.state()); w.waiting > 0 && reason == "" {
				r.Fatalf("%d pods wait without a reported reason: %+v", w.waiting, w.state())
			}
		}
		for range rapid.IntRange(1, 12).Draw(r, "rounds") {
			switch rapid.IntRange(0, 3).Draw(r, "what") {
			case 0:
				w.trunk = Trunk{Wanted: rapid.Bool().Draw(r, "trunk"), Branches: true}
			case 1, 2:
				w.waiting += rapid.IntRange(0, 20).Draw(r, "pods")
				w.place()
			default:
				w.end(rapid.Uint64().Draw(r, "seed"))
			}
			w.place()
			settle()
		}
		w.trunk, w.waiting = Trunk{Wanted: true, Branches: true}, 0
		for _, e := range w.enis {
			clear(e.pods)
		}
		settle()
		if !there() {
			r.Fatalf("node without pods has no trunk: %+v", w.state())
		}
	})
}

func TestShortageNamesTheReason(t *testing.T) {
	full := func(e ENI, used, cool int) ENI { e.Addresses, e.Used, e.Cooling = 3, used, cool; return e }
	next := ENI{ID: "eni-1", Subnet: "s1", Index: 1, Phase: Attached, Ours: true}
	third := ENI{ID: "eni-2", Subnet: "s1", Index: 2, Phase: Attached, Ours: true}
	allUsed := []ENI{full(eni0, 3, 0), full(next, 3, 0), full(third, 3, 0)}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		s      State
		want   string
	}{
		{"no waiting pods", ipam.Policy{}, State{ENIs: allUsed}, ""},
		{"no waiting pods, instance full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed, Subnets: forNew}, ""},
		{"no waiting pods, subnet full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed[:1], Subnets: []Subnet{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"growth is possible", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ""},
		{"free address", ipam.Policy{}, State{ENIs: []ENI{full(eni0, 2, 0)}, Waiting: 1, Subnets: forNew}, ""},
		{"instance full", ipam.Policy{}, State{ENIs: allUsed, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"MAX_ENI", ipam.Policy{MaxENI: 1}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"instance full, some addresses cooling", ipam.Policy{}, State{ENIs: []ENI{full(eni0, 3, 0), full(next, 3, 0), full(third, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
		{"subnet full", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []Subnet{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"no subnet for new ENIs", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []Subnet{{ID: "s1", Free: 99}}}, ReasonSubnetFull},
		{"first index too high", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2, FirstInterfaceIndex: 3}, State{ENIs: allUsed[:1], Subnets: forNew}, ReasonFirstIndex},
		{"first index too high, pods waiting", ipam.Policy{FirstInterfaceIndex: 15}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonFirstIndex},
		{"no index left", ipam.Policy{FirstInterfaceIndex: 2}, State{ENIs: []ENI{eni0, full(third, 3, 0)}, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"max-pods", ipam.Policy{MaxPods: 3}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonMaxPods},
		{"max-pods, some addresses cooling", ipam.Policy{MaxPods: 3}, State{ENIs: []ENI{full(eni0, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
	} {
		got, text := Shortage(t3small, c.policy, c.s)
		if got != c.want || (got == "") != (text == "") {
			t.Errorf("%s: %q (%s), want %q", c.name, got, text, c.want)
		}
		check.Equal(t, strings.Contains(text, "none of the configured subnets"), c.name == "no subnet for new ENIs", "%s: message %q mentions the configured subnets", c.name, text)
	}
}

func TestCandidates(t *testing.T) {
	described := cloud.Subnet{ID: "s1", VPCID: "vpc-1", Zone: "a", Tags: map[string]string{"for": "pods", "team": "x"}}
	here := Candidates{VPC: "vpc-1", Zone: "a", InstanceZone: "a", Primary: "s0"}
	with := func(change func(*Candidates)) Candidates { c := here; change(&c); return c }
	for _, c := range []struct {
		name string
		of   Candidates
		s    cloud.Subnet
		want bool
	}{
		{"primary's subnet", with(func(c *Candidates) { c.Primary = "s1" }), described, true},
		{"not the primary's subnet", here, described, false},
		{"primary's subnet, not yet described", here, cloud.Subnet{ID: "s0"}, true},
		{"by ID", with(func(c *Candidates) { c.IDs = []string{"s9", "s1"} }), described, true},
		{"matching tags, but not in IDs", with(func(c *Candidates) { c.IDs, c.Tags = []string{"s9"}, described.Tags }), described, false},
		{"by tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods"} }), described, true},
		{"other tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods", "team": "y"} }), described, false},
		{"any", with(func(c *Candidates) { c.Any = true }), described, true},
		{"any, not yet described", with(func(c *Candidates) { c.Any = true }), cloud.Subnet{ID: "s1"}, false},
		{"in another VPC", with(func(c *Candidates) { c.IDs, c.VPC = []string{"s1"}, "vpc-2" }), described, false},
		{"in another zone", with(func(c *Candidates) { c.IDs, c.Zone = []string{"s1"}, "b" }), described, false},
		{"in a configured zone other than the instance's", with(func(c *Candidates) { c.IDs, c.InstanceZone = []string{"s1"}, "b" }), described, false},
	} {
		check.Equal(t, c.of.Has(c.s), c.want, "%s", c.name)
	}
}

// Each part of an excess is released when it has lasted for the delay, regardless of when the other parts were added:
// pods that end one after the other do not delay the release of each other's addresses.
func TestExcessLastsByParts(t *testing.T) {
	const delay = time.Minute
	type moment struct{ second, n, want int }
	for name, moments := range map[string][]moment{
		"all together":      {{0, 20, 0}, {59, 20, 0}, {60, 20, 20}, {61, 0, 0}},
		"in steps":          {{0, 1, 0}, {1, 9, 0}, {2, 20, 0}, {60, 20, 1}, {61, 20, 9}, {62, 20, 20}},
		"dip":               {{0, 20, 0}, {30, 5, 0}, {31, 20, 0}, {60, 20, 5}, {90, 20, 5}, {91, 20, 20}},
		"dip to a step":     {{0, 5, 0}, {10, 20, 0}, {20, 5, 0}, {60, 5, 5}},
		"dip between steps": {{0, 5, 0}, {10, 20, 0}, {20, 9, 0}, {60, 9, 5}, {70, 9, 9}},
		"none meanwhile":    {{0, 20, 0}, {30, 0, 0}, {31, 20, 0}, {90, 20, 0}, {91, 20, 20}},
		"minimum during the delay": {
			{0, 5, 0}, {30, 2, 0}, {59, 9, 0}, {60, 9, 2}, {61, 7, 0}, {118, 7, 0}, {119, 7, 7}, {120, 7, 7}, {121, 0, 0}, {122, 4, 0}, {182, 4, 4}, {183, 4, 4},
		},
		"partly released": {{0, 20, 0}, {60, 20, 20}, {61, 11, 11}, {62, 12, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			var e Lasting
			begin := time.Unix(1e9, 0)
			for _, m := range moments {
				now := begin.Add(time.Duration(m.second) * time.Second)
				check.Equal(t, e.Allow(m.n, m.n, now, delay), m.want, "lasting part after %d s with an excess of %d", m.second, m.n)
				if due := e.Due(now, delay); !due.IsZero() && !due.After(now) {
					t.Errorf("after %d s: Due() = %v is not in the future", m.second, due)
				}
			}
		})
	}
}

// Pods that start and end repeatedly do not reduce a constant excess, even if it cannot be released yet, such as a
// prefix with one used address.
func TestExcessLastsDespiteChurn(t *testing.T) {
	for _, every := range []int{1, 2, 4, 8} {
		var e Lasting
		for s := range 1200 {
			n := 18 - (s/every)%2
			if got := e.Allow(n, 48, unix(s), time.Minute); s > 70 && got < 17 {
				t.Fatalf("with a change every %d s, after %d s: lasting excess = %d, want at least 17", every, s, got)
			}
		}
	}
}
