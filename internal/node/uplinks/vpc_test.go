package uplinks

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/source"
)

func TestRepairSparesENIsThatAreNotKnownYet(t *testing.T) {
	m := newMachine(t)
	link := m.addLink("ens6", 6)
	open := func() *VPC {
		n := NewVPC(m.open())
		must(t, n.Setup(context.Background(), datapath.Config{}, m.vpc))
		return n
	}
	enis := func(n *VPC) int {
		inv, err := n.Inventory(context.Background())
		must(t, err)
		return len(inv.Uplinks)
	}
	set := eni.ENI{
		ID: "eni-2", MAC: mac.Addr(link), DeviceIndex: 1, PrimaryIPv4: netip.MustParseAddr("10.0.2.4"),
		Subnet: netip.MustParsePrefix("10.0.2.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.5")},
	}
	must(t, open().SetENI(context.Background(), set))

	n := open() // another daemon, which has not heard of the ENI
	if _, err := n.Repair(context.Background(), nil, nil, func(i int) bool { return i == 1 }); !errors.Is(err, source.ErrSupplyUnknown) {
		t.Errorf("err = %v", err)
	}
	if enis(n) != 1 {
		t.Fatal("the repair removed an ENI that may be in use")
	}
	must(t, n.SetENI(context.Background(), set))
	if did, err := n.Repair(context.Background(), nil, nil, func(int) bool { return true }); err != nil || len(did) != 0 {
		t.Errorf("repair of what is as it should be did %v, %v", did, err)
	}
	if _, err := open().Repair(context.Background(), nil, nil, func(int) bool { return false }); err != nil {
		t.Error(err)
	}
	if enis(n) != 0 {
		t.Error("an ENI that nobody may need is left")
	}
	if err := n.RemoveENI(context.Background(), "eni-2"); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

func TestVPCGetsAnotherCIDR(t *testing.T) {
	m := newMachine(t)
	n := NewVPC(m.open())
	must(t, n.Setup(context.Background(), datapath.Config{}, m.vpc))
	cidrs := append([]netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, m.vpc.LocalCIDRs...)
	for _, want := range []bool{true, false} {
		if changed, err := n.SetLocalCIDRs(context.Background(), cidrs); err != nil || changed != want {
			t.Errorf("changed %v, %v; want %v", changed, err, want)
		}
	}
	if changed, err := n.SetLocalCIDRs(context.Background(), nil); err != nil || changed {
		t.Errorf("no CIDRs at all were taken over: %v, %v", changed, err)
	}
}
