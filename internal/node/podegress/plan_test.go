package podegress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
)

var plain = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// useNamed is Egress name of namespace internet.
func useNamed(name string) use {
	return use{types.NamespacedName{Namespace: "internet", Name: name}, types.UID("uid-of-" + name)}
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// gatewayNumber is gateway i of an Egress, by its UID's number.
func gatewayNumber(i int) gateway {
	return gateway{uid: fmt.Sprintf("gw-%04d", i), addrs: addrs(fmt.Sprintf("10.9.%d.%d", i/250, i%250+1))}
}

// egressWith is an Egress that is reached by gateways.
func egressWith(name string, gateways ...gateway) egress {
	u := useNamed(name)
	slices.SortFunc(gateways, byUID)
	return egress{name: u.name, uid: u.uid, destinations: prefixes("203.0.113.0/24"), gateways: gateways}
}

// planned plans for a pod that uses all of some Egresses.
func planned(pod string, has *attachment.Egress, silent map[use]silentOnes, all ...egress) attachment.Egress {
	s := inputs{pod: pod, has: has, silent: func(u use) silentOnes { return silent[u] }}
	known := map[use]egress{}
	for _, t := range all {
		u := use{t.name, t.uid}
		s.uses, known[u] = append(s.uses, u), t
	}
	s.find = func(u use) (egress, bool) { t, ok := known[u]; return t, ok }
	return plan(s)
}

// ids are the gateways' IDs, by UID.
func ids(e attachment.Egress) map[string]int {
	out := map[string]int{}
	for _, u := range e.Egresses {
		for _, g := range u.Gateways {
			out[g.UID] = g.ID
		}
	}
	return out
}

// chosen are the UIDs of gateways that new connections may take.
func chosen(e attachment.Egress) (out []string) {
	for _, u := range e.Egresses {
		for _, g := range u.Gateways {
			if g.Chosen {
				out = append(out, g.UID)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestPlan(t *testing.T) {
	one, two, ends := gatewayNumber(1), gatewayNumber(2), gatewayNumber(3)
	ends.ending = true
	direct := egressWith("nat", two, one, ends)
	direct.originating, direct.sourceAuto = true, true
	byService := egressWith("partner", gatewayNumber(7), ends)
	byService.toService, byService.service = true, addrs("10.96.0.17")
	fresh := byService
	fresh.service = nil // the Service has no address yet
	of := func(name string, gateways ...attachment.EgressGateway) attachment.UsedEgress {
		return attachment.UsedEgress{Namespace: "internet", Name: name, UID: "uid-of-" + name, Destinations: prefixes("203.0.113.0/24"), Gateways: gateways}
	}
	nat := of("nat",
		attachment.EgressGateway{ID: 1, UID: "gw-0001", Addresses: one.addrs, Chosen: true},
		attachment.EgressGateway{ID: 2, UID: "gw-0002", Addresses: two.addrs, Chosen: true},
		attachment.EgressGateway{ID: 3, UID: "gw-0003", Addresses: ends.addrs, Ending: true})
	nat.OriginatingOnly, nat.SourcePortAuto = true, true
	partner := of("partner",
		attachment.EgressGateway{UID: "gw-0003", Addresses: ends.addrs, Ending: true},
		attachment.EgressGateway{UID: "gw-0007", Addresses: gatewayNumber(7).addrs})
	partner.Service = addrs("10.96.0.17")
	for name, tt := range map[string]struct {
		has  *attachment.Egress
		of   []egress
		want attachment.Egress
	}{
		"nothing":                     {},
		"each by one of the gateways": {of: []egress{direct}, want: attachment.Egress{LastID: 3, Egresses: []attachment.UsedEgress{nat}}},
		"by the Service":              {of: []egress{byService}, want: attachment.Egress{Egresses: []attachment.UsedEgress{partner}}},
		"a Service without addresses": {of: []egress{fresh}, want: attachment.Egress{Egresses: []attachment.UsedEgress{of("partner")}}},
		"no gateways":                 {of: []egress{egressWith("nat")}, want: attachment.Egress{Egresses: []attachment.UsedEgress{of("nat")}}},
		"a client no more":            {has: &attachment.Egress{LastID: 3, Forward: true, Egresses: []attachment.UsedEgress{nat}}, want: attachment.Egress{LastID: 3, Forward: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := planned("pod", tt.has, nil, tt.of...)
			if d := cmp.Diff(tt.want, got, plain); d != "" {
				t.Error(d)
			}
			record := attachment.Record{Version: attachment.Version, Key: attachment.Key{ContainerID: "c", IfName: "eth0"}, Lease: attachment.Lease{IPv4: addrs("10.0.0.1")[0]}, Egress: &got, State: attachment.Ready, HostLink: "bth0", InstanceID: "n", BootID: "b"}
			if _, err := record.Encode(); err != nil {
				t.Errorf("no record takes it: %v", err)
			}
		})
	}
}

// An Egress that the node does not know, or cannot use, stays as it was.
func TestUnknownEgressStays(t *testing.T) {
	has := planned("pod", nil, nil, egressWith("nat", gatewayNumber(1)), egressWith("other", gatewayNumber(2)))
	s := inputs{pod: "pod", has: &has, uses: []use{useNamed("nat"), useNamed("never"), useNamed("other")}, silent: func(use) silentOnes { return nil }}
	other := egressWith("other", gatewayNumber(2), gatewayNumber(3))
	s.find = func(u use) (egress, bool) { return other, u == useNamed("other") }
	got := plan(s)
	if len(got.Egresses) != 2 || !reflect.DeepEqual(got.Egresses[0], has.Egresses[0]) {
		t.Errorf("was %+v\nis %+v", has, got)
	}
	if d := cmp.Diff(map[string]int{"gw-0001": 1, "gw-0002": 2, "gw-0003": 3}, ids(got)); d != "" {
		t.Error(d)
	}
}

// IDs go round: one that became free is given again when all others were.
func TestIDsGoRound(t *testing.T) {
	var has *attachment.Egress
	freed := map[int]int{} // when
	for i := range 3 * attachment.MaxEgressGateways {
		got := planned("pod", has, nil, egressWith("nat", gatewayNumber(i), gatewayNumber(i+1)))
		now := ids(got)
		if has != nil {
			before := ids(*has)
			if now[gatewayNumber(i).uid] != before[gatewayNumber(i).uid] {
				t.Fatalf("a gateway that stays had ID %d and has %d", before[gatewayNumber(i).uid], now[gatewayNumber(i).uid])
			}
			freed[before[gatewayNumber(i-1).uid]] = i
			if since, was := freed[now[gatewayNumber(i+1).uid]]; was && i-since < attachment.MaxEgressGateways-3 {
				t.Fatalf("ID %d was freed %d changes before", now[gatewayNumber(i+1).uid], i-since)
			}
		}
		has = &got
		// Between two gateways there may be none for a moment.
		none := planned("pod", has, nil, egressWith("nat", gatewayNumber(i+1)))
		has = &none
	}
}

// With session affinity a gateway that comes takes its share of pods and moves no other, and
// those of one that goes are shared out.
func TestAffinityMovesFew(t *testing.T) {
	const pods = 1000
	affine := func(gateways ...int) egress {
		var list []gateway
		for _, i := range gateways {
			list = append(list, gatewayNumber(i))
		}
		to := egressWith("nat", list...)
		to.affine = true
		return to
	}
	three, four, two := affine(1, 2, 3), affine(1, 2, 3, 4), affine(1, 3)
	count := map[string]int{}
	moved := 0
	for i := range pods {
		pod := fmt.Sprintf("pod-%d", i)
		at := chosen(planned(pod, nil, nil, three))
		if len(at) != 1 {
			t.Fatalf("%s goes by %v", pod, at)
		}
		count[at[0]]++
		if with := chosen(planned(pod, nil, nil, four)); with[0] != at[0] {
			moved++
			if with[0] != gatewayNumber(4).uid {
				t.Errorf("%s went from %s to %s, as gateway 4 came", pod, at[0], with[0])
			}
		}
		if without := chosen(planned(pod, nil, nil, two)); at[0] != gatewayNumber(2).uid && without[0] != at[0] {
			t.Errorf("%s went from %s to %s, as gateway 2 went", pod, at[0], without[0])
		}
	}
	for uid, n := range count {
		if n < pods/3*8/10 || n > pods/3*12/10 {
			t.Errorf("%d of %d pods go by %s of three", n, pods, uid)
		}
	}
	if moved < pods/4*8/10 || moved > pods/4*12/10 {
		t.Errorf("a fourth gateway took %d of %d pods", moved, pods)
	}
}

// A gateway that lacks a family is not the only one of a pod while another has both.
func TestAffinityWantsBothFamilies(t *testing.T) {
	single, both := gatewayNumber(1), gatewayNumber(2)
	both.addrs = addrs("10.9.0.3", "fd00::3")
	to := egressWith("nat", single, both)
	to.affine = true
	for i := range 20 {
		if got := chosen(planned(fmt.Sprint("pod-", i), nil, nil, to)); !slices.Equal(got, []string{both.uid}) {
			t.Errorf("pod %d goes by %v", i, got)
		}
	}
}

// Gateways that do not answer are avoided, unless there are no others.
func TestSilentGatewaysAreAvoided(t *testing.T) {
	one, two, ends := gatewayNumber(1), gatewayNumber(2), gatewayNumber(3)
	ends.ending = true
	to := egressWith("nat", one, two, ends)
	silent := func(list ...gateway) map[use]silentOnes {
		ones := silentOnes{}
		for _, g := range list {
			ones[g.uid] = true
		}
		return map[use]silentOnes{useNamed("nat"): ones}
	}
	for _, affine := range []bool{false, true} {
		to.affine = affine
		if got := chosen(planned("pod", nil, silent(one), to)); !slices.Equal(got, []string{two.uid}) {
			t.Errorf("affine %t: without gateway 1 it goes by %v", affine, got)
		}
		if got, want := chosen(planned("pod", nil, silent(one, two), to)), chosen(planned("pod", nil, nil, to)); !slices.Equal(got, want) {
			t.Errorf("affine %t: none answers, and it goes by %v, not %v", affine, got, want)
		}
	}
}

// Of more gateways than IDs a pod has a part, of each Egress alike, which stays while others
// come and go.
func TestMoreGatewaysThanIDs(t *testing.T) {
	list := func(from, to int) (out []gateway) {
		for i := from; i < to; i++ {
			out = append(out, gatewayNumber(i))
		}
		return out
	}
	small, large := egressWith("small", list(0, 5)...), egressWith("large", list(1000, 1900)...)
	got := planned("pod", nil, nil, large, small)
	if n := len(got.Egresses[0].Gateways); n != attachment.MaxEgressGateways-5 || len(got.Egresses[1].Gateways) != 5 {
		t.Fatalf("%d gateways of 900, and %d of 5", n, len(got.Egresses[1].Gateways))
	}
	again := planned("pod", &got, nil, large, small)
	if !sameEgress(&got, &again) {
		t.Error("it is another when it is planned again")
	}
	grown := planned("pod", &got, nil, egressWith("large", list(1000, 1910)...), small)
	before, after, stay := ids(got), ids(grown), 0
	for uid, id := range after {
		if before[uid] == id {
			stay++
		}
	}
	if stay < attachment.MaxEgressGateways-12 {
		t.Errorf("of %d gateways %d stayed, as 10 of 900 came", len(after), stay)
	}
	// All but one end: that one new connections can take.
	ending := list(1000, 1900)
	for i := range ending {
		ending[i].ending = ending[i].uid != "gw-1500"
	}
	if got := chosen(planned("pod", nil, nil, egressWith("large", ending...))); !slices.Equal(got, []string{"gw-1500"}) {
		t.Errorf("new connections go by %v", got)
	}
	if n := len(planned("other", nil, nil, large, small).Egresses[0].Gateways); n != attachment.MaxEgressGateways-5 {
		t.Errorf("another pod has %d", n)
	}
}

// After random changes of Egresses and their gateways: a plan is planned again of a pod that has it,
// no two gateways have one ID, none changes its own, and new connections have a way if there
// is one.
func TestPlanInvariants(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	var has *attachment.Egress
	gateways := map[string][]gateway{}
	for step := range 2000 {
		name := []string{"a", "b", "c"}[r.IntN(3)]
		list := slices.Clone(gateways[name])
		switch n := r.IntN(10); {
		case n < 4:
			list = append(list, gateway{uid: fmt.Sprintf("%s-%d", name, step), addrs: gatewayNumber(step).addrs})
		case n < 6 && len(list) > 0:
			i := r.IntN(len(list))
			list = slices.Delete(list, i, i+1)
		case n < 8 && len(list) > 0:
			list[r.IntN(len(list))].ending = true
		case n == 9:
			list = nil
		}
		gateways[name] = list
		var all []egress
		for _, name := range slices.Sorted(maps.Keys(gateways)) {
			if r.IntN(10) > 0 {
				to := egressWith(name, slices.Clone(gateways[name])...)
				to.affine = name == "a"
				to.toService = name == "c"
				if r.IntN(4) > 0 {
					to.service = addrs("10.96.0.1")
				}
				all = append(all, to)
			}
		}
		got := planned("pod", has, nil, all...)
		again := planned("pod", &got, nil, all...)
		if !sameEgress(&got, &again) || got.LastID != again.LastID {
			t.Fatalf("step %d: planned again it is another\n%s", step, cmp.Diff(got, again, plain))
		}
		taken := map[int]string{}
		for i, e := range got.Egresses {
			ready, way := 0, 0
			for _, g := range e.Gateways {
				if g.ID == 0 && len(e.Service) > 0 {
					continue
				}
				if other, twice := taken[g.ID]; twice || g.ID < 1 || g.ID > attachment.MaxEgressGateways {
					t.Fatalf("step %d: ID %d is of %s and %s", step, g.ID, other, g.UID)
				}
				taken[g.ID] = g.UID
				if g.Chosen {
					way++
				}
				if !g.Ending {
					ready++
				}
				if g.Ending && g.Chosen {
					t.Fatalf("step %d: new connections take %s, which ends", step, g.UID)
				}
			}
			switch {
			case all[i].toService:
			case all[i].affine && way != min(ready, 1), !all[i].affine && way != ready:
				t.Fatalf("step %d: of %d ready gateways new connections take %d", step, ready, way)
			}
		}
		if has != nil {
			now := ids(got)
			for uid, id := range ids(*has) {
				if at, still := now[uid]; still && at != id {
					t.Fatalf("step %d: %s had ID %d and has %d", step, uid, id, at)
				}
			}
		}
		has = &got
	}
}

func TestSameEgress(t *testing.T) {
	a := planned("pod", nil, nil, egressWith("nat", gatewayNumber(1)))
	b := planned("pod", nil, nil, egressWith("nat", gatewayNumber(1)))
	b.State, b.LastID = attachment.EgressChanging, 99
	if !sameEgress(&a, &b) || !sameEgress(nil, &attachment.Egress{}) || !sameEgress(&attachment.Egress{Egresses: []attachment.UsedEgress{}}, nil) {
		t.Error("the same is not the same")
	}
	b.Egresses[0].Gateways[0].Chosen = false
	if sameEgress(&a, &b) || sameEgress(nil, &a) || sameEgress(&attachment.Egress{Forward: true}, nil) {
		t.Error("what differs is the same")
	}
}
