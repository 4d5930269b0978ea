package cloudfake

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

// small is a VPC with a subnet of 11 addresses and one m5.large.
func small(t *testing.T, o Options) *Cloud {
	t.Helper()
	c := New(o)
	c.State.AddSubnet("subnet-1", "a", "10.0.0.0/28", map[string]string{"for": "pods"})
	c.State.AddInstance("i-1", "m5.large", "subnet-1")
	return c
}

func class(t *testing.T, err error, want cloud.Class) {
	t.Helper()
	if got := cloud.ClassOf(err); got != want || err == nil {
		t.Errorf("error class = %v (%v), want %v", got, err, want)
	}
}

// refused is class for calls with another result.
func refused(t *testing.T, want cloud.Class) func(_ any, err error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		class(t, err, want)
	}
}

func free(t *testing.T, c *Cloud) int {
	t.Helper()
	s, err := c.Subnets(t.Context(), cloud.SubnetFilter{Zone: "a", Tags: map[string]string{"for": "pods"}})
	if err != nil || len(s) != 1 {
		t.Fatalf("Subnets() = %v, %v, want one subnet", s, err)
	}
	return s[0].Free
}

// ENIs go through their life cycle; invalid calls along the way are rejected.
func TestENILifecycle(t *testing.T) {
	c, ctx := small(t, Options{}), t.Context()
	req := cloud.CreateENI{SubnetID: "subnet-1", Groups: []string{Group}, Amount: cloud.Amount{Addresses: 3}, ClientToken: "t", Tags: map[string]string{"a": "1"}}
	e := check.Must(c.CreateENI(ctx, req))(t)
	if again, err := c.CreateENI(ctx, req); err != nil || again.ID != e.ID || len(e.Addresses) != 3 || free(t, c) != 6 {
		t.Errorf("CreateENI() = %+v, then %+v (%v), %d addresses free; want the same ENI, 6 free", e, again, err, free(t, c))
	}
	req.Addresses = 4
	refused(t, cloud.Bug)(c.CreateENI(ctx, req))
	refused(t, cloud.SubnetFull)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 6}}))
	refused(t, cloud.Gone)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-2"}))
	refused(t, cloud.Gone)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Groups: []string{"sg-9"}}))
	refused(t, cloud.Conflict)(c.AttachENI(ctx, e.ID, "i-1", 0))
	a := check.Must(c.AttachENI(ctx, e.ID, "i-1", 1))(t)
	check.OK(t, c.SetDeleteOnTermination(ctx, e.ID, a, true))
	check.OK(t, c.Tag(ctx, e.ID, map[string]string{"b": "2"}))
	class(t, c.DeleteENI(ctx, e.ID), cloud.Conflict)
	refused(t, cloud.LimitReached)(c.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 7})) // 10 on an ENI of an m5.large
	got := check.Must(c.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 6}))(t)
	refused(t, cloud.SubnetFull)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"}))
	class(t, c.UnassignAddresses(ctx, e.ID, []netip.Prefix{netip.MustParsePrefix("10.9.9.9/32")}), cloud.Gone)
	check.OK(t, c.UnassignAddresses(ctx, e.ID, got[:5]))

	list := check.Must(c.ENIs(ctx, cloud.ENIFilter{InstanceIDs: []string{"i-0", "i-1"}, Tags: map[string]string{"a": "1", "b": "2"}}))(t)
	if len(list) != 1 || len(list[0].Addresses) != 4 || !list[0].Attachment.DeleteOnTermination || list[0].Attachment.Status != "attached" {
		t.Errorf("listing = %+v, want an attached ENI with four addresses", list)
	}
	list[0].Addresses[0] = netip.Addr{}
	if truth := c.State.Truth(); len(truth) != 2 || !truth[1].Addresses[0].IsValid() {
		t.Errorf("modifying a result changed the cloud: %+v", truth)
	}
	check.OK(t, c.DetachENI(ctx, a))
	class(t, c.DetachENI(ctx, a), cloud.Gone)
	check.OK(t, c.DeleteENI(ctx, e.ID))
	check.Equal(t, free(t, c), 10, "free addresses at the end")
	if s := c.Front.Total(pace.CreateENI.Action); s.Calls != 7 || s.Failed != 5 || s.Refused != 0 {
		t.Errorf("creation stats = %+v, want 7 calls, 5 failed", s)
	}
	if c.Front.CPU() <= 0 {
		t.Error("CPU() is not positive")
	}
}

// TestTerminate: ENIs with DeleteOnTermination are deleted, others are detached.
func TestTerminate(t *testing.T) {
	c, ctx := small(t, Options{}), t.Context()
	for i := range 2 {
		e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"}))(t)
		a := check.Must(c.AttachENI(ctx, e.ID, "i-1", 1+i))(t)
		check.OK(t, c.SetDeleteOnTermination(ctx, e.ID, a, i == 0))
	}
	c.State.Terminate("i-1")
	refused(t, cloud.Gone)(c.Instance(ctx, "i-1"))
	left, err := c.ENIs(ctx, cloud.ENIFilter{Status: "available"})
	if err != nil || len(left) != 1 || len(c.State.Truth()) != 1 || free(t, c) != 10 {
		t.Errorf("ENIs after termination = %+v (%v), %d addresses free; want one ENI, 10 free", left, err, free(t, c))
	}
}

// TestPrefixes: a subnet hands out prefixes until none is left, and reuses returned ones.
func TestPrefixes(t *testing.T) {
	c, ctx := New(Options{}), t.Context()
	c.State.AddSubnet("subnet-1", "a", "10.0.0.0/26", map[string]string{"for": "pods"})
	e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Prefixes: 1}}))(t)
	more := check.Must(c.AssignAddresses(ctx, e.ID, cloud.Amount{Prefixes: 1}))(t)
	if more[0] == e.Prefixes[0] || more[0].Bits() != 28 || free(t, c) != 59-1-32 {
		t.Errorf("prefixes %v and %v, %d addresses free; want different /28 prefixes, 26 free", e.Prefixes, more, free(t, c))
	}
	refused(t, cloud.SubnetFull)(c.AssignAddresses(ctx, e.ID, cloud.Amount{Prefixes: 1})) // 26 are free, but no aligned 16
	check.OK(t, c.UnassignAddresses(ctx, e.ID, more))
	if back, err := c.AssignAddresses(ctx, e.ID, cloud.Amount{Prefixes: 1}); err != nil || back[0] != more[0] {
		t.Errorf("AssignAddresses() = %v, %v, want the returned prefix again", back, err)
	}
	check.OK(t, c.UnassignAddresses(ctx, e.ID, more))
	c.State.SetFragmented("subnet-1", true)
	refused(t, cloud.SubnetFull)(c.AssignAddresses(ctx, e.ID, cloud.Amount{Prefixes: 1}))
}

// TestIPv6: a subnet with an IPv6 block hands out addresses and prefixes, through separate calls and within the
// limits of the instance, and takes them back.
func TestIPv6(t *testing.T) {
	c, ctx := small(t, Options{}), t.Context()
	c.State.SetIPv6("subnet-1", "2001:db8::/64")
	c.State.AddSubnet("subnet-2", "b", "10.1.0.0/28", nil)
	e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 1, IPv6Prefixes: 2}}))(t)
	if len(e.Addresses) != 1 || len(e.IPv6) != 0 || len(e.IPv6Prefixes) != 2 || free(t, c) != 8 {
		t.Errorf("new ENI = %+v, %d addresses free; want two IPv6 prefixes, 8 free", e, free(t, c))
	}
	refused(t, cloud.SubnetFull)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-2", Amount: cloud.Amount{IPv6: 1}})) // no IPv6 block
	refused(t, cloud.Bug)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{IPv6: 1, IPv6Prefixes: 1}}))
	refused(t, cloud.SubnetFull)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 8, IPv6: 1}}))
	refused(t, cloud.SubnetFull)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{IPv6Prefixes: 65533}})) // 65536 minus the first, the last and two in use
	refused(t, cloud.Bug)(c.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1, IPv6: 1}))
	check.Must(c.AttachENI(ctx, e.ID, "i-1", 1))(t)
	refused(t, cloud.LimitReached)(c.AssignAddresses(ctx, e.ID, cloud.Amount{IPv6: 9})) // an m5.large allows 10 per ENI, and there is no primary one
	got := check.Must(c.AssignAddresses(ctx, e.ID, cloud.Amount{IPv6: 8}))(t)
	refused(t, cloud.LimitReached)(c.AssignAddresses(ctx, e.ID, cloud.Amount{IPv6Prefixes: 1}))
	check.Must(c.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1}))(t) // IPv4 has separate limits
	class(t, c.UnassignAddresses(ctx, e.ID, []netip.Prefix{netip.MustParsePrefix("2001:db8::999/128")}), cloud.Gone)
	class(t, c.UnassignAddresses(ctx, e.ID, []netip.Prefix{got[0], cloud.HostPrefix(e.Addresses[0])}), cloud.Bug)
	check.OK(t, c.UnassignAddresses(ctx, e.ID, got[:7]))
	check.OK(t, c.UnassignAddresses(ctx, e.ID, e.IPv6Prefixes[:1]))

	subnets, err := c.Subnets(ctx, cloud.SubnetFilter{IDs: []string{"subnet-1"}})
	if want := netip.MustParsePrefix("2001:db8::/64"); err != nil || len(subnets) != 1 || !slices.Equal(subnets[0].IPv6, []netip.Prefix{want}) {
		t.Errorf("Subnets() = %+v, %v, want one with the IPv6 block", subnets, err)
	}
	list := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{e.ID}}))(t)
	if !slices.Equal(list[0].IPv6, []netip.Addr{got[7].Addr()}) || !slices.Equal(list[0].IPv6Prefixes, e.IPv6Prefixes[1:]) || len(list[0].Addresses) != 2 {
		t.Errorf("ENI = %+v, want one IPv6 address, one IPv6 prefix and two IPv4 addresses", list[0])
	}
	list[0].IPv6[0], list[0].IPv6Prefixes[0] = netip.Addr{}, netip.Prefix{}
	if truth := c.State.Truth()[1]; !truth.IPv6[0].IsValid() || !truth.IPv6Prefixes[0].IsValid() {
		t.Errorf("modifying a result changed the cloud: %+v", truth)
	}
	c.State.Steal(e.ID, got[7].Addr())
	if truth := c.State.Truth()[1]; len(truth.IPv6) != 0 || len(truth.Addresses) != 2 {
		t.Errorf("ENI after Steal() = %+v, want no IPv6 address", truth)
	}
	if four, six := c.Front.Total(pace.Assign.Action).Calls, c.Front.Total(pace.AssignIPv6.Action).Calls; four != 1 || six != 4 {
		t.Errorf("%d calls of %s and %d of %s, want 1 and 4", four, pace.Assign.Action, six, pace.AssignIPv6.Action)
	}
	check.Equal(t, c.Front.Total(pace.UnassignIPv6.Action).Calls, 4, "calls of %s", pace.UnassignIPv6.Action)
	c.Front.Inject(Fault{Action: pace.AssignIPv6.Action, Err: Err(cloud.SubnetFull, "")})
	check.Must(c.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1}))(t)
	refused(t, cloud.SubnetFull)(c.AssignAddresses(ctx, e.ID, cloud.Amount{IPv6: 1}))
	c.State.Terminate("i-1")
	check.OK(t, c.DeleteENI(ctx, e.ID))
	check.Equal(t, c.State.subnets["subnet-1"].six.free(), 65534, "free prefixes at the end")
}

// TestSpace6: no address is handed out twice or lies in a prefix, and a prefix is reused only after all others.
func TestSpace6(t *testing.T) {
	s := newSubnet(cloud.Subnet{CIDR: netip.MustParsePrefix("10.0.0.0/28"), IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8:0:7::/64")}}, &peak{clock: clock.Real{}}).six
	first := s.takePrefix()
	delete(s.taken, first)
	seen := map[netip.Addr]bool{}
	for range 65533 {
		p, a := s.takePrefix(), s.take()
		switch {
		case p == first, seen[p.Addr()], seen[a], p.Bits() != 80, p != p.Masked(), !s.cidr.Contains(p.Addr()), !s.cidr.Contains(a):
			t.Fatalf("invalid prefix %v or address %v", p, a)
		case seen[cloud.PrefixAround(a).Addr()]:
			t.Fatalf("address %v lies in a prefix", a)
		}
		seen[p.Addr()], seen[a] = true, true
	}
	if p := s.takePrefix(); p != first || s.free() != 0 {
		t.Errorf("last prefix = %v, %d free; want %v, none free", p, s.free(), first)
	}
	if last := netip.MustParsePrefix("2001:db8:0:7:ffff::/80"); s.taken[last] || s.taken[s.cidr] || seen[s.at(0)] || seen[s.at(3)] || !seen[s.at(4)] {
		t.Errorf("reserved addresses were handed out (last prefix: %v)", s.taken[last])
	}
}

// TestDelays: calls, attaching and token buckets take the configured time.
func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := small(t, Options{
			Latency: 100 * time.Millisecond, AttachTime: 2 * time.Second,
			Shared: &Bucket{Rate: 1, Size: 4}, Buckets: map[string]Bucket{pace.CreateENI.Action: {Rate: 1, Size: 1}},
		}), t.Context()
		start := time.Now()
		e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"}))(t)
		check.Equal(t, time.Since(start), 100*time.Millisecond, "duration of the call")
		refused(t, cloud.Throttled)(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"}))
		check.Must(c.AttachENI(ctx, e.ID, "i-1", 1))(t)
		status := func() string {
			list := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{e.ID}}))(t)
			return list[0].Attachment.Status
		}
		check.Equal(t, status(), "attaching", "status after 100 ms")
		time.Sleep(2 * time.Second) //nolint:forbidigo // bubble time
		check.Equal(t, status(), "attached", "status after 2 s")
		refused := c.Front.Total().Refused
		for range 10 {
			_, _ = c.RouteTables(ctx, VPC)
		}
		// 4 at first and 3.4 in the time since the first call, of which 4 calls had theirs.
		check.Equal(t, c.Front.Total().Refused-refused, 7, "refused calls of 10")
	})
}

// TestManyNodes: the cost of a call does not grow with the number of nodes.
func TestManyNodes(t *testing.T) {
	const nodes = 10_000
	c, ctx := New(Options{}), t.Context()
	c.State.AddSubnet("subnet-1", "a", "10.0.0.0/8", nil)
	for i := range nodes {
		c.State.AddInstance(fmt.Sprintf("i-%d", i), "m5.xlarge", "subnet-1")
	}
	for i := range nodes {
		id := fmt.Sprintf("i-%d", i)
		for index := 1; index < 4; index++ {
			e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", Amount: cloud.Amount{Addresses: 8}, ClientToken: fmt.Sprint(id, index)}))(t)
			check.Must(c.AttachENI(ctx, e.ID, id, index))(t)
		}
		if list, err := c.ENIs(ctx, cloud.ENIFilter{InstanceID: id}); err != nil || len(list) != 4 {
			t.Fatalf("ENIs() returned %d ENIs, %v, want 4", len(list), err)
		}
	}
	took := c.Front.CPU()
	list, err := c.ENIs(ctx, cloud.ENIFilter{VPCID: VPC})
	if err != nil || len(list) != 4*nodes || c.Front.Total(pace.DescribeENIs.Action).Calls != nodes+40 {
		t.Errorf("ENIs() = %d ENIs, error %v, after %d calls; want %d ENIs after %d calls", len(list), err, c.Front.Total(pace.DescribeENIs.Action).Calls, 4*nodes, nodes+40)
	}
	t.Logf("%d calls took %v of CPU, the listing %v", 7*nodes, took, c.Front.CPU()-took)
	seen := make(map[netip.Addr]bool, 10*nodes)
	for _, e := range list {
		for _, a := range append(e.Addresses, e.Primary) {
			if seen[a] {
				t.Fatalf("%v was assigned twice", a)
			}
			seen[a] = true
		}
	}
}

// TestFaultsAndLag: a call with a lost reply takes effect, a refused one does not, and listings lag while
// configured.
func TestFaultsAndLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := small(t, Options{}), t.Context()
		e := c.State.AddENI("i-1", 1, cloud.InterfaceOrdinary, nil)
		c.State.SetLag(10 * time.Second)
		c.Front.Inject(Fault{Op: "AssignAddresses", ENI: e, Times: 1, Err: Err(cloud.Transient, ""), After: true})
		c.Front.Inject(Fault{Op: "AssignAddresses", ENI: e, Times: 1, Err: Err(cloud.Conflict, "")})
		for _, want := range []cloud.Class{cloud.Transient, cloud.Conflict} {
			refused(t, want)(c.AssignAddresses(ctx, e, cloud.Amount{Addresses: 1}))
		}
		for _, want := range []int{0, 1} {
			in := check.Must(c.Instance(ctx, "i-1"))(t)
			list := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{e}}))(t)
			if len(list) != 1 || len(list[0].Addresses) != want || len(in.ENIs[1].Addresses) != want || len(c.State.Truth()[1].Addresses) != 1 {
				t.Errorf("ENIs = %+v, ENIs of the instance = %+v, want %d addresses", list, in.ENIs, want)
			}
			time.Sleep(10 * time.Second) //nolint:forbidigo // bubble time
		}
		if n := c.Front.Count("AssignAddresses"); n != 2 || c.Front.Calls()[0].Err == nil {
			t.Errorf("%d calls logged, want 2, the first one failed: %+v", n, c.Front.Calls())
		}
	})
}

// TestSubnet: an address is reused only after all others, and a prefix comes from the highest free aligned block.
func TestSubnet(t *testing.T) {
	s := newSubnet(cloud.Subnet{CIDR: netip.MustParsePrefix("10.0.0.0/26")}, &peak{clock: clock.Real{}})
	first, _ := s.take()
	s.give(first)
	for range 58 {
		if a, ok := s.take(); !ok || a == first {
			t.Fatalf("take() = %v, %v after releasing %v, want another address", a, ok, first)
		}
	}
	if a, ok := s.take(); !ok || a != first || s.left != 0 {
		t.Errorf("take() = %v, %v, %d left; want %v as the last one", a, ok, s.left, first)
	}
	for i := range 16 {
		if p, ok := s.takePrefix(); ok {
			t.Errorf("takePrefix() = %v after releasing %d addresses, want none", p, i)
		}
		s.give(s.at(16 + i))
	}
	for i := range 16 {
		s.give(s.at(32 + i))
	}
	for _, want := range []string{"10.0.0.32/28", "10.0.0.16/28"} {
		if p, ok := s.takePrefix(); !ok || p.String() != want {
			t.Errorf("takePrefix() = %v, %v, want %s", p, ok, want)
		}
	}
}

// TestAssociations: associations are listed by trunk and VLAN, and listings that lag show a branch in its former
// state. Tests of package aws compare all other behaviour of trunks and branches with the lab.
func TestAssociations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := small(t, Options{}), t.Context()
		first, second := c.State.AddENI("i-1", 1, cloud.InterfaceTrunk, nil), c.State.AddENI("i-1", 2, cloud.InterfaceTrunk, nil)
		c.State.SetLag(time.Second)
		var want []cloud.Association
		for _, at := range []struct {
			trunk string
			vlan  int
		}{{second, 1}, {first, 2}, {first, 1}} {
			e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"}))(t)
			a := check.Must(c.AssociateBranch(ctx, cloud.Association{TrunkID: at.trunk, BranchID: e.ID, VLAN: at.vlan}, ""))(t)
			want = append([]cloud.Association{a}, want...)
		}
		check.Equal(t, c.State.Associations(), want, "associations")
		shown := func(status string) int {
			list := check.Must(c.ENIs(ctx, cloud.ENIFilter{Status: status, Types: []cloud.InterfaceType{cloud.InterfaceBranch, cloud.InterfaceOrdinary}, IDs: []string{want[0].BranchID}}))(t)
			return len(list)
		}
		time.Sleep(time.Second) //nolint:forbidigo // bubble time
		check.OK(t, c.DisassociateBranch(ctx, want[0].ID))
		if shown("in-use") != 1 || shown("available") != 0 {
			t.Error("listing already shows the disassociation despite the lag")
		}
		time.Sleep(time.Second) //nolint:forbidigo // bubble time
		if shown("in-use") != 0 || shown("available") != 1 {
			t.Error("listing does not show the disassociation after the lag")
		}
		check.Equal(t, c.State.Associations(), want[1:], "associations")
	})
}
