package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/eni"
)

func TestRepairSparesENIsThatAreNotKnownYet(t *testing.T) {
	m := newMachine(t, 1)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "ens6", net.HardwareAddr{2, 0, 0, 0, 0, 6}
	second := netlink.NewVeth(attrs)
	second.PeerName = "router6"
	if err := m.net.LinkAdd(second); err != nil {
		t.Fatal(err)
	}
	open := func() *Network {
		node, err := datapath.Open(datapath.WithNetnsPath(m.path))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		n := NewNetwork(node)
		if err := n.Setup(context.Background(), m.config); err != nil {
			t.Fatal(err)
		}
		return n
	}
	enis := func(n *Network) int {
		inv, err := n.Inventory(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return len(inv.ENIs)
	}
	set := eni.ENI{
		ID: "eni-2", MAC: eni.MAC(attrs.HardwareAddr), DeviceIndex: 1, PrimaryIPv4: netip.MustParseAddr("10.0.2.4"),
		Subnet: netip.MustParsePrefix("10.0.2.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.5")},
	}
	if err := open().SetENI(context.Background(), set); err != nil {
		t.Fatal(err)
	}

	n := open() // another daemon, which has not heard of the ENI
	if _, err := n.Repair(context.Background(), nil, nil, func(i int) bool { return i == 1 }); !errors.Is(err, ErrSupplyUnknown) {
		t.Errorf("err = %v", err)
	}
	if enis(n) != 1 {
		t.Fatal("the repair removed an ENI that may be in use")
	}
	if err := n.SetENI(context.Background(), set); err != nil {
		t.Fatal(err)
	}
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
	m := newMachine(t, 1)
	s := m.start(time.Hour)
	cidrs := append([]netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, m.config.LocalCIDRs...)
	for _, want := range []bool{true, false} {
		if changed, err := s.net.SetLocalCIDRs(context.Background(), cidrs); err != nil || changed != want {
			t.Errorf("changed %v, %v; want %v", changed, err, want)
		}
	}
	if changed, err := s.net.SetLocalCIDRs(context.Background(), nil); err != nil || changed {
		t.Errorf("no CIDRs at all were taken over: %v, %v", changed, err)
	}
}

// Where addresses are of blocks a repair waits for the source to tell which there
// are, puts back what it asked for last, and announces nothing after a
// withdrawal. IPv6 follows the blocks, across restarts too.
func TestNetworkOfBlocks(t *testing.T) {
	m := newMachine(t, 1)
	ctx := context.Background()
	never := func(int) bool { t.Error("asked for an ENI"); return true }
	open := func() *Network {
		node, err := datapath.Open(datapath.WithNetnsPath(m.path))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		n := NewNetwork(node)
		if err := n.Setup(ctx, datapath.Config{ExportTable: 119}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	state := func(n *Network) (announced, refused int, v6 bool) {
		inv, err := n.Inventory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range inv.Blocks {
			announced += len(b.Tables)
			if b.Unreachable {
				refused++
			}
		}
		return announced, refused, slices.ContainsFunc(inv.Rules, func(r datapath.RuleInfo) bool { return r.IPv6 })
	}
	want := func(n *Network, when string, announced, refused int, v6 bool) {
		t.Helper()
		if a, r, six := state(n); a != announced || r != refused || six != v6 {
			t.Errorf("%s: %d announced, %d refused, IPv6 %v; want %d, %d, %v", when, a, r, six, announced, refused, v6)
		}
	}
	repair := func(n *Network) {
		t.Helper()
		if _, err := n.Repair(ctx, nil, nil, never); err != nil {
			t.Fatal(err)
		}
	}
	n := open()
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, ErrSupplyUnknown) {
		t.Errorf("err = %v", err)
	}
	want(n, "at first", 0, 0, false)
	blocks := []datapath.Block{
		{Name: "a-0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/31")}},
		{Name: "a-1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.2/31"), netip.MustParsePrefix("fd02::202/127")}},
	}
	for _, step := range []struct {
		blocks    []datapath.Block
		announced int
		v6        bool
	}{{blocks[:1], 1, false}, {blocks, 3, true}} {
		if err := n.SetBlocks(ctx, step.blocks); err != nil {
			t.Fatal(err)
		}
		want(n, "after SetBlocks", step.announced, step.announced, step.v6)
	}
	if err := n.Node.WithdrawBlocks(ctx); err != nil { // somebody else's doing, as to the Network
		t.Fatal(err)
	}
	repair(n)
	want(n, "after a repair", 3, 3, true)

	n = open() // another daemon
	want(n, "after a restart", 3, 3, true)
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, ErrSupplyUnknown) {
		t.Errorf("err = %v", err)
	}
	if err := n.SetBlocks(ctx, blocks); err != nil {
		t.Fatal(err)
	}
	repair(n)
	if err := n.WithdrawBlocks(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, ErrSupplyUnknown) {
		t.Errorf("err = %v", err)
	}
	want(n, "after a withdrawal", 0, 3, true)
	if err := n.SetBlocks(ctx, nil); err != nil {
		t.Fatal(err)
	}
	repair(n)
	want(n, "without blocks", 0, 0, true)
}
