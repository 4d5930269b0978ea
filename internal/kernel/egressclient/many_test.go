package egressclient

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/berthnet/berth/internal/kernel/kernelstate"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Egresses with Services may have more gateways than fit into one netlink message. FoU is accepted from all.
func TestManyGateways(t *testing.T) {
	const gateways = 1000
	s := Setup{Link: "eth0", MTU: 1500, Port: 5555, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd01::2")}}
	for i := range byte(4) {
		e := Egress{Name: "internet/" + string('a'+rune(i)), Destinations: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, i}), 32)},
			Service: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, i})}}
		for n := range gateways {
			hi, lo := byte(n>>8), byte(n)
			e.Gateways = append(e.Gateways, Gateway{Addrs: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 10 + i, hi, lo}), netip.AddrFrom16([16]byte{0: 0xfd, 13: i, 14: hi, 15: lo}),
			}})
		}
		s.Egresses = append(s.Egresses, e)
	}
	f, err := newFilter(s, loosened{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := open(nstest.New(t, "clientmany"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if err := k.setFilter(f); err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table}
	for set, want := range map[string]int{"gateways4": 4*gateways + 4, "gateways6": 4 * gateways} {
		list, err := k.nft.GetSetElements(&nftables.Set{Table: table, Name: set})
		if err != nil || len(list) != want {
			t.Errorf("%s has %d elements, want %d: %v", set, len(list), want, err)
		}
	}
}

// On a kernel without FoU, or in a sandbox that hides it, Apply returns ErrNoFoU and leaves nothing behind. On one
// with FoU it succeeds.
func TestKernelWithoutFoU(t *testing.T) {
	path := nstest.New(t, "clientnofou")
	before := stateText(t, path)
	s := one(Egress{Destinations: nets("203.0.113.0/24"), Gateways: []Gateway{gw(1, true, "10.1.1.2")}})
	err := Apply(context.Background(), path, s)
	if Supported() == nil {
		t.Logf("this kernel has FoU: Apply says %v", err)
		if errors.Is(err, ErrNoFoU) {
			t.Errorf("Apply: %v, though the kernel has FoU", err)
		}
		return
	}
	if !errors.Is(err, ErrNoFoU) || !strings.Contains(err.Error(), "fou") || !strings.Contains(err.Error(), path) {
		t.Errorf("Apply: %v, want %v, which module, and where", err, ErrNoFoU)
	}
	if after := stateText(t, path); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if err := Apply(context.Background(), path, Setup{}); err != nil {
		t.Errorf("take away what is not there: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// stateText is what the kernel has in a namespace.
func stateText(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	err := ns.Do(path, func() error {
		for _, p := range kernelstate.Parts() {
			if err := p.Write(&b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Limits and use of the whole machine's are no part of a namespace.
	machines := func(line string) bool { return strings.HasPrefix(line, "fs/") || strings.HasPrefix(line, "kernel/") }
	return strings.Join(slices.DeleteFunc(strings.Split(b.String(), "\n"), machines), "\n")
}
