package vpc

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// Groups and rules that are added at run time are part of the state and cause events.
func TestSecurityGroupsChangeAtRunTime(t *testing.T) {
	c, err := New(spec.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	told := 0
	defer c.Subscribe(func(ev Event) {
		if ev.Kind == RulesChanged {
			told++
		}
	})()
	before := c.Snapshot()
	id, err := c.AddSecurityGroup(SecurityGroup{Name: "web", VPCID: before.VPCs[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	in := Rule{Protocol: "tcp", FromPort: 80, ToPort: 80, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	if err := c.Authorize(id, in); err != nil {
		t.Fatal(err)
	}
	if g, ok := c.Snapshot().Group(id); !ok || g.Name != "web" || len(g.Ingress) != 1 || g.Ingress[0].FromPort != 80 {
		t.Errorf("group after Authorize = %+v, want web with one rule for port 80", g)
	}
	if _, ok := before.Group(id); ok || told != 2 {
		t.Errorf("earlier snapshot has the group: %t, want false; %d events, want 2", ok, told)
	}
	if err := c.Authorize("sg-none", in); err == nil {
		t.Error("Authorize() accepted an unknown group")
	}
	if _, err := c.AddSecurityGroup(SecurityGroup{Name: "far", VPCID: "vpc-none"}); err == nil {
		t.Error("AddSecurityGroup() accepted an unknown VPC")
	}
	if _, err := c.AddSecurityGroup(SecurityGroup{ID: id, VPCID: before.VPCs[0].ID}); err == nil {
		t.Error("AddSecurityGroup() accepted a duplicate ID")
	}
}
