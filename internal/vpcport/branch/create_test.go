package branch_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/test/harness"
)

// of are the ports that a listing has of a NIC.
func (b *bed) of(p *branch.Provider, uid string) []vpcport.Port {
	b.t.Helper()
	list, err := p.Ports(b.t.Context(), vpcport.Filter{Devices: []string{vpcport.Device(cluster, uid)}})
	harness.OK(b.t, err)
	return list
}

// A repeated request returns the port whose reply was lost, also to another process.
func TestLostCreation(t *testing.T) {
	b := newBed(t)
	for _, uid := range []string{"u-1", "u-2"} {
		b.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort(uid, "i-a")})
		failsWith(t, "the first", err, vpcport.Transient)
		again := b.provider
		if uid == "u-2" {
			again = b.open()
		}
		p := b.make(again, newPort(uid, "i-a"))
		b.wantBound("again", p, "i-a")
		if list := b.of(b.open(), uid); len(list) != 1 || list[0].ID != p.ID {
			t.Errorf("%s: there are %+v, want %s alone", uid, list, p.ID)
		}
	}
}

// A port that another client deleted is made again by the same request.
func TestPortsDeletedByOthers(t *testing.T) {
	b := newBed(t)
	for round := range 3 {
		p := b.make(b.provider, newPort("u-1", "i-a"))
		b.wantBound("made", p, "i-a")
		harness.OK(t, b.cloud.DeleteENI(t.Context(), p.ID))
		if round == 1 {
			b.clock.Advance(branch.Settle)
		}
		if list := b.of(b.provider, "u-1"); round == 1 && len(list) != 0 {
			t.Errorf("there are %+v", list)
		}
		host := "i-a2"
		_, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
		if err == nil {
			t.Error("a port that is gone was moved")
		}
	}
}

// A port is in the requested subnet, or else in a configured one with room in its instance's zone, or
// else in that of the trunk.
func TestSubnets(t *testing.T) {
	b := newBed(t)
	at := func(list ...vpcport.NewAddress) func(*vpcport.NewPort) {
		return func(n *vpcport.NewPort) { n.Addresses = list }
	}
	subnet := func(p vpcport.Port) string { return p.Addresses[0].SubnetID }
	if got := subnet(b.make(b.provider, newPort("u-1", "i-b"))); got != "subnet-b" {
		t.Errorf("that of the trunk: %s", got)
	}
	small := vpcport.NewAddress{SubnetID: "subnet-small", IP: netip.MustParseAddr("10.0.32.9")}
	if p := b.make(b.provider, newPort("u-2", "i-a", at(small))); p.Addresses[0] != vpcport.FixedIP(small) {
		t.Errorf("a certain address: %+v", p.Addresses)
	}
	some := b.open(func(s *branch.Settings) { s.Subnets = []string{"subnet-b", "subnet-small", "subnet-a"} })
	if got := subnet(b.make(some, newPort("u-3", "i-a"))); got != "subnet-a" {
		t.Errorf("of several the one with most room in the zone: %s", got)
	}
	among := func(n *vpcport.NewPort) { n.Subnets = []string{"subnet-b", "subnet-small"} }
	if got := subnet(b.make(some, newPort("u-8", "i-a", among))); got != "subnet-small" {
		t.Errorf("of those that it is to be among the one in the zone: %s", got)
	}
	b.cloud.State.SetFree("subnet-a", 0) // which the listing did not show yet
	if got := subnet(b.make(some, newPort("u-4", "i-a"))); got != "subnet-small" {
		t.Errorf("where that is full: %s", got)
	}
	b.cloud.State.SetFree("subnet-small", 0)
	_, err := some.Create(t.Context(), []vpcport.NewPort{newPort("u-5", "i-a")})
	failsWith(t, "where all are full", err, vpcport.SubnetFull)
	none := b.open(func(s *branch.Settings) { s.Subnets = []string{"subnet-b", "subnet-gone"} })
	_, err = none.Create(t.Context(), []vpcport.NewPort{newPort("u-6", "i-a")})
	failsWith(t, "where none is in the zone", err, vpcport.Invalid)
	for name, list := range map[string][]vpcport.NewAddress{
		"two":         {{SubnetID: "subnet-a"}, {SubnetID: "subnet-a"}},
		"one of IPv6": {{SubnetID: "subnet-a", IP: netip.MustParseAddr("2001:db8::1")}},
	} {
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-7", "i-a", at(list...))})
		failsWith(t, "addresses: "+name, err, vpcport.Invalid)
	}
}

// A port has the requested security groups, or else those of the trunk.
func TestGroups(t *testing.T) {
	b := newBed(t)
	p := b.make(b.provider, newPort("u-1", "i-a", func(n *vpcport.NewPort) { n.Groups = []string{"sg-web"} }))
	if len(p.Groups) != 1 || p.Groups[0] != "sg-web" {
		t.Errorf("got %v", p.Groups)
	}
	trunk := b.eni(b.eni(p.ID).Tags[branch.TagTrunk])
	if p := b.make(b.provider, newPort("u-2", "i-a")); strings.Join(p.Groups, " ") != strings.Join(trunk.Groups, " ") {
		t.Errorf("got %v, the trunk has %v", p.Groups, trunk.Groups)
	}
}

// lying is a cloud whose new ENIs are not as asked for.
type lying struct {
	*cloudfake.Cloud
	lie func(*cloud.ENI)
}

func (l *lying) CreateENI(ctx context.Context, r cloud.CreateENI) (cloud.ENI, error) {
	e, err := l.Cloud.CreateENI(ctx, r)
	l.lie(&e)
	return e, err
}

// Impossible replies are errors.
func TestImpossibleReplies(t *testing.T) {
	for _, tt := range []struct {
		name string // of what the error names
		lie  func(*cloud.ENI)
	}{
		{"network", func(e *cloud.ENI) { e.VPCID = "vpc-2" }},
		{"address", func(e *cloud.ENI) { e.SubnetID = "subnet-b" }},
		{"address", func(e *cloud.ENI) { e.Primary = netip.Addr{} }},
		{"device", func(e *cloud.ENI) { e.Tags["berth.dev/nic"] = vpcport.Device(cluster, "u-2") }},
		{"device", func(e *cloud.ENI) { delete(e.Tags, "berth.dev/cluster") }},
		{"set of security groups", func(e *cloud.ENI) { e.Groups = []string{"sg-1"} }},
	} {
		b := newBed(t)
		p := b.open(func(s *branch.Settings) { s.Cloud = &lying{b.cloud, tt.lie} })
		_, err := p.Create(t.Context(), []vpcport.NewPort{newPort("u-1", "i-a", func(n *vpcport.NewPort) { n.Groups = []string{"sg-web"} })})
		failsWith(t, tt.name, err, vpcport.Bug)
		if err != nil && !strings.HasSuffix(err.Error(), "another "+tt.name) {
			t.Errorf("%s: the error does not name it: %v", tt.name, err)
		}
	}
}

// Replies take precedence over listings that lag.
func TestRepliesOutrankListings(t *testing.T) {
	b := newBed(t)
	b.cloud.State.SetLag(lag)
	p := b.make(b.provider, newPort("u-1", "i-a"))
	if list := b.of(b.provider, "u-1"); len(list) != 1 || list[0].Host != "i-a" {
		t.Errorf("right after: %+v", list)
	}
	b.clock.Advance(2 * lag)
	harness.OK(t, b.provider.Delete(t.Context(), p.ID))
	if list := b.of(b.provider, "u-1"); len(list) != 0 {
		t.Errorf("after its deletion: %+v", list)
	}
	if list := b.of(b.open(), "u-1"); len(list) != 1 {
		t.Errorf("another process sees %+v already: the listing does not trail", list)
	}
	b.clock.Advance(time.Hour)
	if list := b.of(b.open(), "u-1"); len(list) != 0 {
		t.Errorf("later: %+v", list)
	}
}
