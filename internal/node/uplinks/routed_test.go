package uplinks

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/source"
)

// A repair of a routed node fails before the first SetBlocks, then restores the last blocks, and announces nothing
// after a withdrawal. IPv6 is on while blocks have it, even after restarts.
func TestBlocksAreRepairedAndWithdrawn(t *testing.T) {
	m := newMachine(t)
	ctx := context.Background()
	never := func(int) bool { t.Error("the repair queried an ENI"); return true }
	open := func() *Routed {
		n := NewRouted(m.open())
		must(t, n.Setup(ctx, datapath.Config{}, datapath.Routed{ExportTable: 119}))
		return n
	}
	state := func(n *Routed) (announced, refused int, v6 bool) {
		inv, err := n.Inventory(ctx)
		must(t, err)
		for _, b := range inv.Blocks {
			announced += len(b.Tables)
			if b.Unreachable {
				refused++
			}
		}
		return announced, refused, slices.ContainsFunc(inv.Rules, func(r datapath.RuleInfo) bool { return r.IPv6 })
	}
	want := func(n *Routed, when string, announced, refused int, v6 bool) {
		t.Helper()
		if a, r, six := state(n); a != announced || r != refused || six != v6 {
			t.Errorf("%s: announced = %d, unreachable = %d, IPv6 = %v; want %d, %d, %v", when, a, r, six, announced, refused, v6)
		}
	}
	repair := func(n *Routed) {
		t.Helper()
		if _, err := n.Repair(ctx, nil, nil, never); err != nil {
			t.Fatal(err)
		}
	}
	n := open()
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, source.ErrSupplyUnknown) {
		t.Errorf("Repair() before SetBlocks = %v, want source.ErrSupplyUnknown", err)
	}
	want(n, "before SetBlocks", 0, 0, false)
	blocks := []datapath.Block{
		{Name: "a-0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/31")}},
		{Name: "a-1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.2/31"), netip.MustParsePrefix("fd02::202/127")}},
	}
	for _, step := range []struct {
		blocks    []datapath.Block
		announced int
		v6        bool
	}{{blocks[:1], 1, false}, {blocks, 3, true}} {
		must(t, n.SetBlocks(ctx, step.blocks))
		want(n, "after SetBlocks", step.announced, step.announced, step.v6)
	}
	if err := n.Node.WithdrawBlocks(ctx); err != nil { // bypasses Routed, like other software
		t.Fatal(err)
	}
	repair(n)
	want(n, "after a repair", 3, 3, true)

	n = open() // another daemon
	want(n, "after a restart", 3, 3, true)
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, source.ErrSupplyUnknown) {
		t.Errorf("Repair() after a restart = %v, want source.ErrSupplyUnknown", err)
	}
	must(t, n.SetBlocks(ctx, blocks))
	repair(n)
	must(t, n.WithdrawBlocks(ctx))
	if _, err := n.Repair(ctx, nil, nil, never); !errors.Is(err, source.ErrSupplyUnknown) {
		t.Errorf("Repair() after a withdrawal = %v, want source.ErrSupplyUnknown", err)
	}
	want(n, "after a withdrawal", 0, 3, true)
	must(t, n.SetBlocks(ctx, nil))
	repair(n)
	want(n, "without blocks", 0, 0, true)
}
