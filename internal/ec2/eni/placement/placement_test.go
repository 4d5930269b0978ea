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

// counting is a cloud whose free counts come from the test.
type counting struct {
	cloud.API
	answer func() []cloud.Subnet
}

func (c counting) Subnets(context.Context, cloud.SubnetFilter) ([]cloud.Subnet, error) {
	return c.answer(), nil
}

// Events between a request and its reply are newer than the reply.
func TestStaleFreeCount(t *testing.T) {
	five := []cloud.Subnet{{ID: "s1", Free: 5}}
	for _, c := range []struct {
		name   string
		during func(t *testing.T, b *Subnets)
		answer []cloud.Subnet // reply to the older request
		want   int
	}{
		{"no event", func(*testing.T, *Subnets) {}, five, 5},
		{"newer reply", func(t *testing.T, b *Subnets) { refresh(t, b, 2, []cloud.Subnet{{ID: "s1", Free: 3}}) }, five, 3},
		{"newer reply with an additional subnet", func(t *testing.T, b *Subnets) { refresh(t, b, 2, five) }, nil, 5},
		{"refusal", func(_ *testing.T, b *Subnets) { b.refused("s1", 2, unix(2)) }, five, 1},
		{"addresses taken", func(_ *testing.T, b *Subnets) { b.Reserve("s1", 4).End(4) }, five, 1},
		{"failed request for addresses", func(_ *testing.T, b *Subnets) { b.Reserve("s1", 4).End(0) }, five, 5},
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
				t.Errorf("Free() = %+v, want %d addresses", got, c.want)
			}
			refresh(t, b, 3, []cloud.Subnet{{ID: "s1", Free: 7}})
			check.Equal(t, b.Free()[0].Free, 7, "free addresses of a later request")
		})
	}
}

func refresh(t *testing.T, b *Subnets, asked int, answer []cloud.Subnet) {
	t.Helper()
	b.api = counting{answer: func() []cloud.Subnet { return answer }}
	check.OK(t, b.Refresh(t.Context(), cloud.SubnetFilter{}, unix(asked)))
}

// Nodes that plan concurrently share the addresses of a subnet.
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
		t.Fatalf("choices = %v, want four", got)
	}
	for i, w := range want {
		if got[i].Subnet != w.subnet || got[i].Addresses != w.addresses {
			t.Errorf("choice %d = %v, want %+v", i, got[i], w)
		}
	}
	holds[0].End(0)
	holds[0].End(6) // only the first end counts
	holds[1].End(6)
	if s1, s2 := b.entry("s1"), b.entry("s2"); s1.Free-s1.reserved != 6 || s2.Free-s2.reserved != 0 {
		t.Errorf("free addresses minus reserved ones = %d and %d, want 6 and 0", s1.Free-s1.reserved, s2.Free-s2.reserved)
	}
}

// EC2 does not count the addresses of an IPv6-only subnet. The subnet appears in no count of free addresses,
// whatever is taken and released, and its blocks can be learned from a file as well as from EC2.
func TestIPv6OnlySubnetsAreNotCounted(t *testing.T) {
	b := newSubnets(nil, nil)
	b.Learn(cloud.Subnet{ID: "wrong", CIDR: netip.MustParsePrefix("10.0.0.0/24")})
	refresh(t, b, 0, []cloud.Subnet{{ID: "wrong", IPv6Native: true}})
	check.Equal(t, len(b.Blocks("wrong")), 0, "blocks of an IPv6-only subnet learned as IPv4")
	delete(b.all, "wrong")
	b.order = nil
	native := cloud.Subnet{ID: "s6", IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, IPv6Native: true}
	b.Learn(native)
	if !b.Native("s6") || len(b.Blocks("s6")) != 1 {
		t.Errorf("learned subnet = %+v, want an IPv6-only one with one block", b.BlocksWith("s6", netip.Addr{}))
	}
	refresh(t, b, 0, []cloud.Subnet{native, {ID: "s4", Free: 5}})
	b.Reserve("s6", 1).End(1)
	b.Returned("s6", 3)
	if got := b.Free(); len(got) != 1 || got[0].ID != "s4" {
		t.Errorf("Free() = %+v, want only the IPv4 subnet", got)
	}
	any6 := plan.Candidates{Any: true}
	b.all["s6"].VPCID, b.all["s6"].Zone = "vpc-1", "zone-a"
	states := b.states(unix(1), nil, any6)
	if len(states) != 1 || !states[0].IPv6Native || states[0].NoIPv6 || states[0].Free != 0 {
		t.Errorf("states = %+v, want the IPv6-only subnet with IPv6 available", states)
	}
	refresh(t, b, 1, []cloud.Subnet{{ID: "s4", Free: 5}})
	if states := b.states(unix(1), nil, any6); !states[0].NoIPv6 {
		t.Errorf("states of the deleted subnet = %+v, want no IPv6 available", states)
	}
	native.VPCID, native.Zone = "vpc-1", "zone-a"
	refresh(t, b, 2, []cloud.Subnet{native})
	if states := b.states(unix(2), nil, any6); states[0].NoIPv6 {
		t.Errorf("states of the recreated subnet = %+v, want IPv6 available", states)
	}
	b.refusedIPv6("s6", unix(5))
	if states := b.states(unix(1), nil, any6); !states[0].NoIPv6 {
		t.Errorf("states after a refusal = %+v, want no IPv6 available", states)
	}
}

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

// TestFreshnessDue checks when subnets are described although the node does not grow, as seen at second 10.
func TestFreshnessDue(t *testing.T) {
	for _, c := range []struct {
		name string
		of   freshness
		want time.Time
	}{
		{"no shortage", freshness{asOf: unix(5)}, time.Time{}},
		{"retry of a subnet", freshness{retryAt: unix(50)}, unix(50)},
		{"exhausted subnet, single node", freshness{exhausted: true, asOf: unix(5)}, unix(65)},
		{"exhausted subnet, shared call", freshness{exhausted: true, asOf: unix(5), shared: true}, unix(15)},
		{"outdated ENIs", freshness{drains: true, asOf: unix(5)}, unix(605)},
	} {
		if got := c.of.due(unix(10)); !got.Equal(c.want) {
			t.Errorf("%s: due() = %v, want %v", c.name, got, c.want)
		}
	}
}

// An ENI is outdated if its security groups differ from those of the settings, or else from the primary ENI's, in any
// order. If an ENI created with the same settings has other groups, someone else changed them, and would change
// those of the next ENI, too.
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
		{"configured groups in another order", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-2", "sg-1"}, false},
		{"group missing", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-1"}, true},
		{"primary's groups, none configured", Settings{}, before, []string{"sg-0"}, false},
		{"formerly configured groups", Settings{}, before, []string{"sg-1"}, true},
		{"groups by tags, not yet found", Settings{GroupTags: map[string]string{"a": "b"}}, before, []string{"sg-1"}, false},
		{"groups of the ENI unknown", Settings{Groups: []string{"sg-1"}}, before, nil, false},
		{"changed by someone else since creation", Settings{Groups: []string{"sg-1"}}, after, []string{"sg-9"}, false},
		{"creation time unknown", Settings{Groups: []string{"sg-1"}}, "", []string{"sg-9"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := clock.NewFake(since)
			p := NewSelector(NewCatalog(nil, now), tt.settings, someENIs{{Groups: []string{"sg-0"}}}, false, now, nil)
			created, _ := time.Parse(time.RFC3339, tt.made)
			check.Equal(t, p.Desired().Outdated(ENI{Groups: tt.groups, Created: created}), tt.want, "outdated")
		})
	}
}

// someENIs is the ENIs of a node, the primary first.
type someENIs []ENI

func (s someENIs) Primary() (ENI, bool) { return s[0], true }
func (s someENIs) Each(do func(ENI)) {
	for _, e := range s {
		do(e)
	}
}

// Callers choose the questions, for example by configured tags. Answers too old for any caller are dropped.
func TestOldRepliesAreDropped(t *testing.T) {
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
		t.Errorf("answers after 9 seconds = %v, want both", m.last)
	}
	now.Advance(time.Second)
	ask("third")
	if _, ok := m.last["first"]; ok || len(m.last) != 2 {
		t.Errorf("answers after 10 seconds = %v, want the first one dropped", m.last)
	}
}

// A subnet that refused addresses is retried when its count may have changed.
func TestRefusedSubnetIsDueAgain(t *testing.T) {
	now := clock.NewFake(unix(0))
	p := NewSelector(NewCatalog(nil, now), Settings{}, someENIs{{}}, false, now, nil)
	p.Refused("s1", 5, unix(0))
	if got := p.Due(unix(0)); !got.IsZero() || !p.CountsStale(unix(0)) {
		t.Errorf("after the first refusal: Due() = %v, want stale counts and no retry time", got)
	}
	p.Refused("s1", 5, unix(0))
	if got := p.Due(unix(0)); !got.Equal(unix(15)) {
		t.Errorf("after the second refusal: Due() = %v, want 15 s later", got)
	}
	p.RefusedPrefix("s1", unix(30))
	if got := p.Due(unix(0)); !got.Equal(unix(30)) {
		t.Errorf("without a free prefix: Due() = %v, want 30 s later", got)
	}
}
