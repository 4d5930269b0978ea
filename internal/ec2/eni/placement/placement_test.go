package placement

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// counting is a cloud whose free counts the test returns.
type counting struct {
	cloud.API
	answer func() []cloud.Subnet
}

func (c counting) Subnets(context.Context, cloud.SubnetFilter) ([]cloud.Subnet, error) {
	return c.answer(), nil
}

// What happens between a question and its answer is newer than the answer.
func TestOlderCountOfFreeAddresses(t *testing.T) {
	five := []cloud.Subnet{{ID: "s1", Free: 5}}
	for _, c := range []struct {
		name   string
		during func(t *testing.T, b *Subnets)
		answer []cloud.Subnet // to the older question
		want   int
	}{
		{"nothing", func(*testing.T, *Subnets) {}, five, 5},
		{"a newer answer", func(t *testing.T, b *Subnets) { refresh(t, b, 2, []cloud.Subnet{{ID: "s1", Free: 3}}) }, five, 3},
		{"a newer answer has a subnet that the older has not", func(t *testing.T, b *Subnets) { refresh(t, b, 2, five) }, nil, 5},
		{"a refusal", func(_ *testing.T, b *Subnets) { b.refused("s1", 2, unix(2)) }, five, 1},
		{"addresses were taken", func(_ *testing.T, b *Subnets) { b.Reserve("s1", 4).End(4) }, five, 1},
		{"addresses were asked for in vain", func(_ *testing.T, b *Subnets) { b.Reserve("s1", 4).End(0) }, five, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newSubnets(nil, nil)
			refresh(t, b, 0, five)
			b.api = counting{answer: func() []cloud.Subnet {
				c.during(t, b)
				return c.answer
			}}
			check.OK(t, b.Refresh(t.Context(), cloud.SubnetFilter{}, unix(1)))
			if got := b.Free(); len(got) != 1 || got[0].Free != c.want {
				t.Errorf("free: %+v, want %d", got, c.want)
			}
			refresh(t, b, 3, []cloud.Subnet{{ID: "s1", Free: 7}})
			check.Equal(t, b.Free()[0].Free, 7, "a count asked for later")
		})
	}
}

func refresh(t *testing.T, b *Subnets, asked int, answer []cloud.Subnet) {
	t.Helper()
	b.api = counting{answer: func() []cloud.Subnet { return answer }}
	check.OK(t, b.Refresh(t.Context(), cloud.SubnetFilter{}, unix(asked)))
}

// Nodes that plan at the same moment share the addresses of a subnet.
func TestReservationIsPartOfTheChoice(t *testing.T) {
	b := newSubnets(nil, nil)
	b.entry("s1").Free = 10
	b.entry("s2").Free = 8
	pick := func(list []plan.Subnet) (plan.Action, string) {
		d := plan.Make(cloud.Limits{MaxENIs: 4, IPv4PerENI: 15}, ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 5, FirstInterfaceIndex: 1}, plan.State{
			ENIs: []plan.ENI{{ID: "eni-0", Phase: plan.Attached, Primary: true, Ours: true}}, Subnets: list,
		})
		if len(d.Actions) == 0 {
			return plan.Action{}, ""
		}
		return d.Actions[0], d.Actions[0].Subnet
	}
	all := plan.Candidates{IDs: []string{"s1", "s2"}}
	var got []plan.Action
	var holds []*Reservation
	for h := b.choose(unix(0), nil, all, pick); h != nil; h = b.choose(unix(0), nil, all, pick) {
		holds = append(holds, h)
		got = append(got, h.action)
	}
	want := []struct {
		subnet    string
		addresses int
	}{{"s1", 5}, {"s2", 5}, {"s1", 3}, {"s2", 1}}
	if len(got) != len(want) {
		t.Fatalf("chose %v", got)
	}
	for i, w := range want {
		if got[i].Subnet != w.subnet || got[i].Addresses != w.addresses {
			t.Errorf("choice %d: %v, want %+v", i, got[i], w)
		}
	}
	holds[0].End(0)
	holds[0].End(6) // only the first end counts
	holds[1].End(6)
	if s1, s2 := b.entry("s1"), b.entry("s2"); s1.Free-s1.reserved != 6 || s2.Free-s2.reserved != 0 {
		t.Errorf("left: %d, %d", s1.Free-s1.reserved, s2.Free-s2.reserved)
	}
}

// EC2 does not count the addresses of an IPv6-only subnet. It is in no count of free addresses,
// whatever is taken and released, and its blocks can be learned from a file as from EC2.
func TestNobodyCountsIPv6(t *testing.T) {
	b := newSubnets(nil, nil)
	b.Learn(cloud.Subnet{ID: "wrong", CIDR: netip.MustParsePrefix("10.0.0.0/24")})
	refresh(t, b, 0, []cloud.Subnet{{ID: "wrong", IPv6Native: true}})
	check.Equal(t, len(b.Blocks("wrong")), 0, "a block of IPv4 that was learned stays")
	delete(b.all, "wrong")
	b.order = nil
	native := cloud.Subnet{ID: "s6", IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, IPv6Native: true}
	b.Learn(native)
	if !b.Native("s6") || len(b.Blocks("s6")) != 1 {
		t.Errorf("learned: %+v", b.BlocksWith("s6", netip.Addr{}))
	}
	refresh(t, b, 0, []cloud.Subnet{native, {ID: "s4", Free: 5}})
	b.Reserve("s6", 1).End(1)
	b.Returned("s6", 3)
	if got := b.Free(); len(got) != 1 || got[0].ID != "s4" {
		t.Errorf("free: %+v, want the subnet of IPv4 alone", got)
	}
	any6 := plan.Candidates{Any: true}
	b.all["s6"].VPCID, b.all["s6"].Zone = "vpc-1", "zone-a"
	states := b.states(unix(1), nil, any6)
	if len(states) != 1 || !states[0].IPv6Native || states[0].NoIPv6 || states[0].Free != 0 {
		t.Errorf("states: %+v", states)
	}
	refresh(t, b, 1, []cloud.Subnet{{ID: "s4", Free: 5}})
	if states := b.states(unix(1), nil, any6); !states[0].NoIPv6 {
		t.Errorf("once it is gone: %+v", states)
	}
	native.VPCID, native.Zone = "vpc-1", "zone-a"
	refresh(t, b, 2, []cloud.Subnet{native})
	if states := b.states(unix(2), nil, any6); states[0].NoIPv6 {
		t.Errorf("back again: %+v", states)
	}
	b.refusedIPv6("s6", unix(5))
	if states := b.states(unix(1), nil, any6); !states[0].NoIPv6 {
		t.Errorf("after a refusal: %+v", states)
	}
}

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

// When subnets are asked about although the node does not grow, seen at second 10.
func TestFreshnessDue(t *testing.T) {
	for _, c := range []struct {
		name string
		of   freshness
		want time.Time
	}{
		{"nothing is lacking", freshness{asOf: unix(5)}, time.Time{}},
		{"a subnet worth another try", freshness{retryAt: unix(50)}, unix(50)},
		{"an exhausted subnet, asked for oneself", freshness{exhausted: true, asOf: unix(5)}, unix(65)},
		{"an exhausted subnet, asked for many", freshness{exhausted: true, asOf: unix(5), shared: true}, unix(15)},
		{"outdated ENIs", freshness{drains: true, asOf: unix(5)}, unix(605)},
	} {
		if got := c.of.due(unix(10)); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Security groups that make an ENI outdated: those of the settings, or else the primary ENI's, in any
// order. An ENI that was created with the same settings and has other groups got them from someone
// else, as the next one would.
func TestOutdatedByGroups(t *testing.T) {
	const before, after = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"
	since := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		settings Settings
		made     string
		groups   []string
		want     bool
	}{
		{"as configured, in another order", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-2", "sg-1"}, false},
		{"one too few", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-1"}, true},
		{"as the primary, where none are configured", Settings{}, before, []string{"sg-0"}, false},
		{"those that were configured, and are no more", Settings{}, before, []string{"sg-1"}, true},
		{"found by tags, which were not asked for yet", Settings{GroupTags: map[string]string{"a": "b"}}, before, []string{"sg-1"}, false},
		{"not known", Settings{Groups: []string{"sg-1"}}, before, nil, false},
		{"changed by another since it was made", Settings{Groups: []string{"sg-1"}}, after, []string{"sg-9"}, false},
		{"made nobody knows when", Settings{Groups: []string{"sg-1"}}, "", []string{"sg-9"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := clock.NewFake(since)
			p := NewSelector(NewCatalog(nil, now), tt.settings, someENIs{{Groups: []string{"sg-0"}}}, false, now, nil)
			created, _ := time.Parse(time.RFC3339, tt.made)
			check.Equal(t, p.Desired().Outdated(ENI{Groups: tt.groups, Created: created}), tt.want, "outdated")
		})
	}
}

// someENIs are the ENIs of a node, the primary first.
type someENIs []ENI

func (s someENIs) Primary() (ENI, bool) { return s[0], true }
func (s someENIs) Each(do func(ENI)) {
	for _, e := range s {
		do(e)
	}
}

// Callers choose the questions, for example by the tags of a person. Answers that are too old for any
// caller are dropped.
func TestOldAnswersAreDropped(t *testing.T) {
	now := clock.NewFake(time.Unix(1000, 0))
	m := newCache[int](now, time.Minute, 10*time.Second)
	ask := func(question string) {
		t.Helper()
		if _, err := m.ask(t.Context(), question, now.Now(), func(context.Context) (int, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
	}
	ask("first")
	now.Advance(9 * time.Second)
	ask("second")
	if _, young := m.get("first", 10*time.Second); !young || len(m.last) != 2 {
		t.Errorf("after 9 seconds there are %v, want both", m.last)
	}
	now.Advance(time.Second)
	ask("third")
	if _, ok := m.last["first"]; ok || len(m.last) != 2 {
		t.Errorf("after 10 seconds there are %v, want the first no more", m.last)
	}
}

// A subnet that refused is due for another try when its count may have changed.
func TestRefusedSubnetIsDueAgain(t *testing.T) {
	now := clock.NewFake(unix(0))
	p := NewSelector(NewCatalog(nil, now), Settings{}, someENIs{{}}, false, now, nil)
	p.Refused("s1", 5, unix(0))
	if got := p.Due(unix(0)); !got.IsZero() || !p.CountsStale(unix(0)) {
		t.Errorf("after the first refusal: due at %v, want the counts asked for at once", got)
	}
	p.Refused("s1", 5, unix(0))
	if got := p.Due(unix(0)); !got.Equal(unix(15)) {
		t.Errorf("after the second: due at %v, want 15 s later", got)
	}
	p.RefusedPrefix("s1", unix(30))
	if got := p.Due(unix(0)); !got.Equal(unix(30)) {
		t.Errorf("without a prefix: due at %v", got)
	}
}
