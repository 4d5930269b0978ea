package portcloud

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Ports are the ENIs without an attachment, with their state in EC2 and Berth's tags.
func TestBranchPorts(t *testing.T) {
	ctx := t.Context()
	o := Options{Log: slog.New(slog.DiscardHandler), Progress: func(string) {}}
	if _, err := NewBranches(ctx, o); err == nil {
		t.Error("NewBranches() without EC2 succeeded")
	}
	s := spec.Default()
	s.Delays = spec.Delays{}
	ec2, err := vpc.New(s)
	ok(t, err)
	defer ec2.Close()
	o.EC2 = ec2
	b, err := NewBranches(ctx, o)
	ok(t, err)
	n, err := b.AddNetwork(ctx, Network{Name: "lab"})
	ok(t, err)
	if len(n.Subnets) != 2 || n.Subnet("a").ID == "" {
		t.Errorf("network = %+v, want two subnets", n)
	}
	if _, err := b.AddNetwork(ctx, Network{Name: "none"}); err == nil {
		t.Error("AddNetwork() of an unknown VPC succeeded")
	}
	group, err := b.AddGroup(ctx, "web", Rule{Protocol: "tcp", Port: 80}, Rule{Protocol: "udp"})
	ok(t, err)
	ok(t, b.Allow(ctx, group, Rule{Protocol: "icmp"}))
	g, _ := ec2.Snapshot().Group(group)
	if len(g.Ingress) != 3 || g.Ingress[0].ToPort != 80 || g.Ingress[1].ToPort != 65535 || g.Ingress[2].FromPort != -1 {
		t.Errorf("group = %+v, want rules for port 80, all ports and all protocols", g)
	}

	node := ec2.Snapshot().Instances[0]
	in := Port{Name: "user's", Groups: []string{group}, Addresses: []Address{{Subnet: node.SubnetID}}}
	p, err := b.AddPort(ctx, in)
	ok(t, err)
	if p.Host != "" || p.Status != "DOWN" || p.Owner != "" || p.Groups[0] != group {
		t.Errorf("port = %+v, want an unbound port in the group", p)
	}
	ok(t, ec2.CreateTags([]string{p.ID}, vpc.Tags{tagNIC: "d", tagOwner: ownerOfNICs}))
	trunk, err := ec2.ENIs.Create(vpc.CreateRequest{SubnetID: node.SubnetID, Type: "trunk"})
	ok(t, err)
	_, err = ec2.ENIs.Attach(vpc.AttachRequest{ENIID: trunk.ID, InstanceID: node.ID, DeviceIndex: 1})
	ok(t, err)
	_, err = ec2.ENIs.Associate(vpc.AssociateRequest{TrunkID: trunk.ID, BranchID: p.ID, VLAN: 7})
	ok(t, err)
	all, err := b.Ports(ctx)
	ok(t, err)
	if len(all) != 1 || all[0].ID != p.ID || all[0].Host != node.Name || all[0].Status != "ACTIVE" || all[0].Owner != berthOwner || all[0].Device != "d" {
		t.Errorf("ports = %+v, want the active port of node", all)
	}
	ok(t, b.RemovePort(ctx, p.ID))
	ok(t, b.RemovePort(ctx, p.ID))
	if all, err = b.Ports(ctx); err != nil || len(all) != 0 {
		t.Errorf("ports after RemovePort() = %+v, %v; want none", all, err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUpperHalf(t *testing.T) {
	for cidr, want := range map[string]string{
		"192.168.0.0/24": "[{192.168.0.128 192.168.0.254}]",
		"10.1.0.0/20":    "[{10.1.8.0 10.1.15.254}]",
		"10.1.2.16/28":   "[{10.1.2.24 10.1.2.30}]",
		"10.1.2.16/29":   "[]", // too small to split
		"fd00::/64":      "[]",
	} {
		if got := fmt.Sprint(upperHalf(netip.MustParsePrefix(cidr))); got != want {
			t.Errorf("upperHalf(%s) = %s, want %s", cidr, got, want)
		}
	}
}
