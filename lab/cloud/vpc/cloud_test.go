package vpc_test

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/iam"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

type tester interface {
	Helper()
	Fatal(...any)
	Cleanup(func())
}

func ok(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newCloud(t tester, s spec.Spec, opts ...vpc.Option) *vpc.Cloud {
	t.Helper()
	c, err := vpc.New(s, opts...)
	ok(t, err)
	t.Cleanup(c.Close)
	return c
}

func delayed() spec.Spec {
	s := spec.Default()
	s.Delays = spec.Delays{
		Attach: spec.Duration(2 * time.Second), Link: spec.Duration(3 * time.Second), Detach: spec.Duration(time.Second),
		Launch: spec.Duration(5 * time.Second), Stop: spec.Duration(4 * time.Second), Terminate: spec.Duration(4 * time.Second),
	}
	return s
}

// eventLog records events as "kind instance device-index", or for a branch as "kind instance vlan ID".
type eventLog struct {
	c   *vpc.Cloud
	mu  sync.Mutex // guards got
	got []string
}

func follow(c *vpc.Cloud) *eventLog {
	s := &eventLog{c: c}
	c.Subscribe(func(e vpc.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		line := string(e.Kind) + " " + e.Instance.Name
		if e.ENI.Attachment != nil {
			line += fmt.Sprintf(" %d", e.ENI.Attachment.DeviceIndex)
		}
		if e.ENI.Trunk != nil {
			line += fmt.Sprintf(" vlan %d", e.ENI.Trunk.VLAN)
		}
		s.got = append(s.got, line)
	})
	return s
}

// since returns the events since the last call.
func (s *eventLog) since() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

func (s *eventLog) want(t *testing.T, want ...string) {
	t.Helper()
	if got := s.since(); !slices.Equal(got, want) {
		t.Fatalf("events = %q, want %q", got, want)
	}
}

func subnetID(t tester, c *vpc.Cloud, name string) string {
	t.Helper()
	s, ok := c.Snapshot().Subnet(name)
	if !ok {
		t.Fatal("subnet not found:", name)
	}
	return s.ID
}

func spare(t tester, c *vpc.Cloud) vpc.ENI {
	t.Helper()
	e, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: subnetID(t, c, "a")})
	ok(t, err)
	return e
}

func TestLinkAppearsAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t, delayed())
		s := follow(c)
		e := spare(t, c)
		id, err := c.ENIs.Attach(vpc.AttachRequest{ENIID: e.ID, InstanceID: c.Instances.ID("node-a"), DeviceIndex: 1})
		ok(t, err)
		s.want(t)
		pass(3*time.Second - 1)
		s.want(t)
		pass(time.Nanosecond)
		s.want(t, "ENIAttached node-a 1")
		if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 1}); err != nil {
			t.Fatal(err)
		}
		s.want(t, "AddressesChanged node-a 1")
		ok(t, c.ENIs.Detach(id, false))
		s.want(t)
		pass(time.Second)
		s.want(t, "ENIDetached node-a 1")
	})
}

// An ENI that is detached before its link appeared never gets a link.
func TestDetachBeforeLinkAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t, delayed())
		s := follow(c)
		e := spare(t, c)
		id, err := c.ENIs.Attach(vpc.AttachRequest{ENIID: e.ID, InstanceID: c.Instances.ID("node-a"), DeviceIndex: 1})
		ok(t, err)
		pass(2 * time.Second)
		ok(t, c.ENIs.Detach(id, false))
		pass(time.Hour)
		if got := s.since(); slices.Contains(got, "ENIAttached node-a 1") {
			t.Fatalf("events = %q, want no ENIAttached of node-a", got)
		}
	})
}

// pass advances the time of the synctest bubble and delivers the events that are due.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
	synctest.Wait()
}

func TestInstanceLifecycleEvents(t *testing.T) { synctest.Test(t, instanceLifeInEvents) }

func instanceLifeInEvents(t *testing.T) {
	c := newCloud(t, delayed())
	s := follow(c)
	step := func(d time.Duration, want ...string) {
		t.Helper()
		pass(d)
		s.want(t, want...)
	}
	i, err := c.Instances.Launch(spec.Instance{Name: "n", Type: "m5.large", Subnet: "a", Interfaces: []spec.Interface{{DeviceIndex: 2, DeleteOnTermination: true}, {DeviceIndex: 1}}})
	if err != nil || i.State != vpc.Pending {
		t.Fatalf("Launch() = state %s, %v; want pending", i.State, err)
	}
	kept := c.Snapshot().InstanceENIs(i.ID)[1].ID
	step(4 * time.Second)
	step(time.Second, "InstanceLaunched n", "ENIAttached n 0", "ENIAttached n 1", "ENIAttached n 2")
	ok(t, c.Instances.Stop("n"))
	step(4*time.Second, "InstanceStopped n")
	if e, _ := c.Snapshot().ENI(kept); e.Attachment == nil || e.Attachment.LinkUp {
		t.Fatalf("attachment to a stopped instance = %+v, want one without a link", e.Attachment)
	}
	ok(t, c.Instances.Start("n"))
	step(5*time.Second, "InstanceLaunched n", "ENIAttached n 0", "ENIAttached n 1", "ENIAttached n 2")
	if err := c.Instances.ForceStop("n"); err == nil {
		t.Error("ForceStop() of a running instance succeeded")
	}
	ok(t, c.Instances.Stop("n"))
	step(time.Second)
	ok(t, c.Instances.ForceStop("n"))
	step(0, "InstanceStopped n")
	step(4 * time.Second)
	ok(t, c.Instances.Start("n"))
	step(5*time.Second, "InstanceLaunched n", "ENIAttached n 0", "ENIAttached n 1", "ENIAttached n 2")
	ok(t, c.Instances.Terminate("n"))
	step(4*time.Second, "ENIDetached n 0", "ENIDetached n 1", "ENIDetached n 2", "InstanceTerminated n")
	snapshot := c.Snapshot()
	if e, ok := snapshot.ENI(kept); !ok || e.Status() != "available" || len(snapshot.ENIs) != 3 {
		t.Fatalf("after termination: %d ENIs, want 3; the kept one = %+v, want available", len(snapshot.ENIs), e)
	}
	step(time.Hour)
	if _, ok := c.Snapshot().Instance("n"); ok {
		t.Fatal("terminated instance is still described after an hour")
	}
}

func TestLaunchErrors(t *testing.T) {
	c := newCloud(t, spec.Default())
	good := spec.Instance{Name: "n", Type: "m5.large", Subnet: "a"}
	for want, change := range map[string]func(*spec.Instance){
		`no subnet "z"`:          func(s *spec.Instance) { s.Subnet = "z" },
		`no subnet "y"`:          func(s *spec.Instance) { s.Interfaces = []spec.Interface{{DeviceIndex: 1, Subnet: "y"}} },
		`no security group "w"`:  func(s *spec.Instance) { s.SecurityGroups = []string{"w"} },
		`no role "admin"`:        func(s *spec.Instance) { s.Role = "admin" },
		"m5.lorge":               func(s *spec.Instance) { s.Type = "m5.lorge" },
		"already has an":         func(s *spec.Instance) { s.Interfaces = []spec.Interface{{DeviceIndex: 0}} },
		"IpAddressLimitExceeded": func(s *spec.Instance) { s.Secondary = 10 },
	} {
		s := good
		change(&s)
		if _, err := c.Instances.Launch(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Launch() = %v, want error containing %q", err, want)
		}
	}
	if snapshot := c.Snapshot(); len(snapshot.Instances) != 2 || len(snapshot.ENIs) != 2 || snapshot.Check() != nil {
		t.Errorf("failed launches left %d instances, %d ENIs (consistency: %v); want 2 and 2", len(snapshot.Instances), len(snapshot.ENIs), snapshot.Check())
	}
}

func TestSameSeedGivesSameCloud(t *testing.T) {
	now := clock.NewFake(time.Unix(1e9, 0))
	build := func(seed uint64) vpc.Snapshot {
		c := newCloud(t, spec.Default(), vpc.WithClock(now), vpc.WithSeed(seed))
		spare(t, c)
		return c.Snapshot()
	}
	byValue := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
	if d := cmp.Diff(build(7), build(7), byValue); d != "" {
		t.Errorf("two clouds with the same seed differ:\n%s", d)
	}
	if reflect.DeepEqual(build(7).ENIs, build(8).ENIs) {
		t.Error("clouds with different seeds have the same ENIs")
	}
}

// Events of a call that removes addresses from several ENIs are in the order of the ENI IDs, so that they
// are reproducible with a seed.
func TestReassignmentEventOrder(t *testing.T) {
	c := newCloud(t, spec.Default())
	var moving []netip.Addr
	var want []string
	for range 8 {
		e, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: subnetID(t, c, "a"), Addresses: vpc.AddressRequest{IPv4Count: 1}})
		ok(t, err)
		moving, want = append(moving, e.Secondary...), append(want, e.ID)
	}
	to := spare(t, c)
	var got []string
	c.Subscribe(func(e vpc.Event) { got = append(got, e.ENI.ID) })
	if _, err := c.ENIs.Assign(to.ID, vpc.AddressRequest{IPv4: moving, AllowReassignment: true}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if want = append(want, to.ID); !slices.Equal(got, want) {
		t.Errorf("events for ENIs %v, want %v", got, want)
	}
}

// If several rate limits cover an action, the most specific one applies.
func TestMostSpecificRateLimitApplies(t *testing.T) {
	s := spec.Default()
	s.RateLimits = map[string]spec.RateLimit{
		"*": {Bucket: 9, Refill: 1}, "Describe*": {Bucket: 1, Refill: 1}, "*eSubnets": {Bucket: 2, Refill: 1}, "*Subnet?": {Bucket: 3, Refill: 1},
		"describevpcs": {Bucket: 4, Refill: 1},
	}
	for action, want := range map[string]int{"DescribeSubnets": 1, "DescribeVpcs": 4, "DescribeTags": 1, "CreateTags": 9} {
		for range 5 {
			c := newCloud(t, s, vpc.WithClock(clock.NewFake(time.Unix(1e9, 0))))
			n := 0
			for c.API.Admit(vpc.Call{Action: action, Principal: vpc.Principal{Policy: iam.Allow("*")}}).Err == nil {
				n++
			}
			if n != want {
				t.Errorf("%s: %d calls admitted, want %d", action, n, want)
			}
		}
	}
}

// All actions of a shared limit's pattern use one bucket, unless they have their own limit.
func TestSharedRateLimit(t *testing.T) {
	s := spec.Default()
	s.RateLimits = map[string]spec.RateLimit{"*": {Bucket: 3, Refill: 1, Shared: true}, "DescribeTags": {Bucket: 1, Refill: 1}}
	c := newCloud(t, s, vpc.WithClock(clock.NewFake(time.Unix(1e9, 0))))
	for i, want := range []bool{true, true, true, false, true, false} {
		action := []string{"DescribeSubnets", "DescribeVpcs", "CreateTags", "DescribeInstances", "DescribeTags", "DescribeTags"}[i]
		err := c.API.Admit(vpc.Call{Action: action, Principal: vpc.Principal{Policy: iam.Allow("*")}}).Err
		if (err == nil) != want {
			t.Errorf("call %d, %s: error %v, want admitted %t", i+1, action, err, want)
		}
	}
}

// A snapshot is a copy: changes to it do not affect the cloud.
func TestSnapshotIsACopy(t *testing.T) {
	c := newCloud(t, spec.Default())
	before, scratch := c.Snapshot(), c.Snapshot()
	for i := range scratch.ENIs {
		scratch.ENIs[i].Attachment.InstanceID = "changed"
		scratch.ENIs[i].Groups[0] = "changed"
		scratch.ENIs[i].MAC[0] = 0xff
	}
	scratch.Instances[0].Tags["Name"] = "changed"
	scratch.Groups[0].Ingress[0].CIDRs[0] = netip.Prefix{}
	opts := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(vpc.Snapshot{}, "Time")}
	if d := cmp.Diff(before, c.Snapshot(), opts); d != "" {
		t.Errorf("changes of the snapshot changed the cloud:\n%s", d)
	}
}

// A subscriber may call the cloud without affecting the order of events.
func TestSubscriberMayCallBack(t *testing.T) {
	c := newCloud(t, spec.Default())
	e := spare(t, c)
	var seqs []uint64
	cancel := c.Subscribe(func(ev vpc.Event) {
		seqs = append(seqs, ev.Seq)
		if len(seqs) == 1 {
			if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 1}); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 1}); err != nil {
		t.Fatal(err)
	}
	if snapshot := c.Snapshot(); len(seqs) != 2 || seqs[1] != seqs[0]+1 || snapshot.Seq != seqs[1] {
		t.Fatalf("events = %v, Seq of the snapshot = %d; want two consecutive ones and the last", seqs, snapshot.Seq)
	}
	cancel()
	if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 1}); err != nil || len(seqs) != 2 {
		t.Fatalf("after unsubscribing: events = %v, want 2 (error: %v)", seqs, err)
	}
}

// Random calls in any order and with any delays leave a consistent state.
func TestRandomCallsKeepStateConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fake := clock.NewFake(time.Unix(1e9, 0))
		s := delayed()
		s.Consistency.Describe = spec.Duration(rapid.Int64Range(0, 5e9).Draw(t, "lag"))
		s.VPCs[0].Subnets[0].CIDR = netip.MustParsePrefix("10.0.0.0/26")
		s.Instances = append(s.Instances, spec.Instance{Name: "old", Type: "t2.micro", Subnet: "a"}, spec.Instance{Name: "few", Type: "c6i.large", Subnet: "a"})
		c := newCloud(t, s, vpc.WithClock(fake), vpc.WithSeed(rapid.Uint64().Draw(t, "seed")))
		anENI := func(t *rapid.T) (none vpc.ENI) {
			if list := c.Snapshot().ENIs; len(list) > 0 {
				return rapid.SampledFrom(list).Draw(t, "ENI")
			}
			return none // no ENI is left; calls for the zero ENI fail
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				r := vpc.CreateRequest{SubnetID: subnetID(t, c, "a"), Type: rapid.SampledFrom([]string{"", "trunk"}).Draw(t, "type")}
				r.Addresses.IPv4Count = rapid.IntRange(0, 4).Draw(t, "addresses")
				r.Addresses.PrefixCount = rapid.IntRange(0, 1).Draw(t, "prefixes")
				_, _ = c.ENIs.Create(r)
			},
			"delete": func(t *rapid.T) { _ = c.ENIs.Delete(anENI(t).ID) },
			"attach": func(t *rapid.T) {
				_, _ = c.ENIs.Attach(vpc.AttachRequest{
					ENIID: anENI(t).ID, InstanceID: rapid.SampledFrom(c.Snapshot().Instances).Draw(t, "instance").ID,
					DeviceIndex: rapid.IntRange(0, 4).Draw(t, "device"),
				})
			},
			"detach": func(t *rapid.T) {
				if e := anENI(t); e.Attachment != nil {
					_ = c.ENIs.Detach(e.Attachment.ID, rapid.Bool().Draw(t, "force"))
				}
			},
			"associate": func(t *rapid.T) {
				_, _ = c.ENIs.Associate(vpc.AssociateRequest{TrunkID: anENI(t).ID, BranchID: anENI(t).ID, VLAN: rapid.IntRange(1, 3).Draw(t, "VLAN")})
			},
			"disassociate": func(t *rapid.T) {
				if e := anENI(t); e.Trunk != nil {
					ok(t, c.ENIs.Disassociate(vpc.DisassociateRequest{AssociationID: e.Trunk.ID}))
				}
			},
			"assign": func(t *rapid.T) {
				r := vpc.AddressRequest{IPv4Count: rapid.IntRange(0, 3).Draw(t, "addresses"), PrefixCount: rapid.IntRange(0, 2).Draw(t, "prefixes")}
				if other := anENI(t); len(other.Secondary) > 0 && rapid.Bool().Draw(t, "take over") {
					r = vpc.AddressRequest{IPv4: other.Secondary[:1], AllowReassignment: true}
				}
				_, _ = c.ENIs.Assign(anENI(t).ID, r)
			},
			"unassign": func(t *rapid.T) {
				e := anENI(t)
				_ = c.ENIs.Unassign(e.ID, vpc.Assigned{IPv4: e.Secondary, Prefixes: e.Prefixes})
			},
			"terminate": func(t *rapid.T) {
				_ = c.Instances.Terminate(rapid.SampledFrom(c.Snapshot().Instances).Draw(t, "instance").ID)
			},
			"launch": func(t *rapid.T) {
				_, _ = c.Instances.Launch(spec.Instance{
					Name: "new", Type: rapid.SampledFrom([]string{"t3.small", "m4.large"}).Draw(t, "type"), Subnet: "a",
					Prefixes: rapid.IntRange(0, 1).Draw(t, "prefixes"), Interfaces: []spec.Interface{{DeviceIndex: 1, Secondary: 2}},
				})
			},
			"time": func(t *rapid.T) { fake.Advance(time.Duration(rapid.Int64Range(0, 4e9).Draw(t, "time"))) },
			"": func(t *rapid.T) {
				ok(t, c.Snapshot().Check())
			},
		})
	})
}

// Counts are checked first: a large count does not make the cloud search, and sums of counts do not
// overflow.
func TestCountsAreBounded(t *testing.T) {
	s := spec.Default()
	s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8::/56")}
	s.VPCs[0].Subnets[0].IPv6 = netip.MustParsePrefix("2001:db8::/64")
	s.Instances[0].IPv6 = 1
	c := newCloud(t, s)
	e := c.Snapshot().InstanceENIs(c.Instances.ID("node-a"))[0]
	for _, r := range []vpc.AddressRequest{
		{IPv4Count: math.MaxInt}, {PrefixCount: math.MaxInt}, {IPv6Count: math.MaxInt}, {IPv6PrefixCount: math.MaxInt},
		{IPv4Count: math.MaxInt, PrefixCount: math.MaxInt}, {IPv6Count: math.MaxInt, IPv6PrefixCount: 2},
	} {
		if got, err := c.ENIs.Assign(e.ID, r); vpc.CodeOf(err) != "PrivateIpAddressLimitExceeded" {
			t.Errorf("Assign(%+v) = %v, %v; want PrivateIpAddressLimitExceeded", r, got, err)
		}
		if _, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: e.SubnetID, Addresses: r}); vpc.CodeOf(err) != "PrivateIpAddressLimitExceeded" {
			t.Errorf("Create() with %+v: %v, want PrivateIpAddressLimitExceeded", r, err)
		}
	}
	if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv6Count: -1}); vpc.CodeOf(err) != "InvalidParameterValue" {
		t.Errorf("negative count: %v, want InvalidParameterValue", err)
	}
}

// A client token of terminated instances launches nothing, even when they are not described any longer.
func TestClientTokenOfTerminatedInstances(t *testing.T) {
	s := spec.Default()
	s.Delays = spec.Delays{}
	now := clock.NewFake(time.Unix(1e9, 0))
	c := newCloud(t, s, vpc.WithClock(now))
	subnet, _ := c.Snapshot().Subnet("a")
	r := vpc.LaunchRequest{SubnetID: subnet.ID, Count: 2, ClientToken: "once"}
	first, err := c.Instances.Run(r)
	ok(t, err)
	if _, err := c.Instances.TerminateAll(first[0].ID); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Instances.Run(r); err != nil || len(again) != 1 || again[0].ID != first[1].ID {
		t.Fatalf("Run() with one of two instances left = %v, %v; want that one", again, err)
	}
	if _, err := c.Instances.TerminateAll(first[1].ID); err != nil {
		t.Fatal(err)
	}
	for _, later := range []time.Duration{0, time.Hour + time.Second} {
		now.Advance(later)
		if again, err := c.Instances.Run(r); vpc.CodeOf(err) != "IdempotentInstanceTerminated" {
			t.Errorf("Run() %v after termination = %v, %v; want IdempotentInstanceTerminated", later, again, err)
		}
	}
}

// An ENI at device index 0 of a network card other than the first can be detached.
func TestDetachFromSecondNetworkCard(t *testing.T) {
	s := spec.Default()
	s.Delays = spec.Delays{}
	s.Instances[0].Type = "p4d.24xlarge"
	s.Instances[0].Interfaces = []spec.Interface{{NetworkCard: 1, DeviceIndex: 0}}
	c := newCloud(t, s)
	enis := c.Snapshot().InstanceENIs(c.Instances.ID("node-a"))
	if err := c.ENIs.Detach(enis[0].Attachment.ID, false); vpc.CodeOf(err) != "OperationNotPermitted" {
		t.Errorf("detach the primary ENI: %v, want OperationNotPermitted", err)
	}
	if err := c.ENIs.Detach(enis[1].Attachment.ID, false); err != nil {
		t.Errorf("detach the ENI at index 0 of card 1: %v", err)
	}
}
