package berthd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/source"
)

// kernelOfENIs is a data path that records what is set.
type kernelOfENIs struct {
	cidrs  []netip.Prefix
	enis   []string
	noIPv6 error // what setting IPv6 CIDRs fails with
}

func (k *kernelOfENIs) SetENI(_ context.Context, e eni.ENI) error {
	k.enis = append(k.enis, e.ID)
	return nil
}

func (k *kernelOfENIs) RemoveENI(context.Context, string) error { return nil }

func (k *kernelOfENIs) ChangedLinks(context.Context) (map[string]source.LinkChange, error) {
	return nil, nil
}

func (k *kernelOfENIs) SetLocalCIDRs(_ context.Context, cidrs []netip.Prefix) (bool, error) {
	if k.noIPv6 != nil && slices.ContainsFunc(cidrs, isIPv6) {
		return false, k.noIPv6
	}
	changed := !slices.Equal(k.cidrs, cidrs)
	k.cidrs = cidrs
	return changed, nil
}

// Pods get IPv6 addresses only where the data path has IPv6, which it has where the
// setting, or the operator by its addresses, asks for it.
func TestIPv6OfTheDataPath(t *testing.T) {
	four, six := netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")
	both := []netip.Prefix{four, six}
	plain := eni.ENI{ID: "eni-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}
	dual := eni.ENI{ID: "eni-1", IPv6Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:0:1::/80")}}
	single := eni.ENI{ID: "eni-1", IPv6: []netip.Addr{netip.MustParseAddr("2001:db8::7")}}
	for name, tt := range map[string]struct {
		set, onDemand bool
		known, asked  []netip.Prefix
		kernel        error
		e             eni.ENI
		fails         bool
		want          []netip.Prefix
	}{
		"IPv4":                                {known: both, e: plain, want: both[:1]},
		"IPv4, though the ENI has some":       {known: both, e: dual, want: both[:1]},
		"set":                                 {set: true, known: both, e: plain, want: both},
		"set, and the VPC got its block late": {set: true, known: both[:1], asked: both, e: dual, want: both},
		"set, and the VPC has none":           {set: true, known: both[:1], asked: both[:1], e: dual, fails: true, want: both[:1]},
		"the operator gave none":              {onDemand: true, known: both, e: plain, want: both[:1]},
		"the operator gave a prefix":          {onDemand: true, known: both, e: dual, want: both},
		"the operator gave an address":        {onDemand: true, known: both, e: single, want: both},
		"no answer":                           {onDemand: true, known: both[:1], e: dual, fails: true, want: both[:1]},
		"a kernel without IPv6":               {onDemand: true, known: both, kernel: errors.New("ipv6.disable=1"), e: dual, fails: true, want: both[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kernelOfENIs{noIPv6: tt.kernel}
			v := &vpcNetworks{vpcDatapath: k, onDemand: tt.onDemand, ask: func(context.Context) ([]netip.Prefix, bool) { return tt.asked, tt.asked != nil }}
			k.cidrs = v.start(tt.known, tt.set)
			if err := v.SetENI(t.Context(), tt.e); (err != nil) != tt.fails || (len(k.enis) == 0) != tt.fails {
				t.Errorf("%v, set %v", err, k.enis)
			}
			if !slices.Equal(k.cidrs, tt.want) {
				t.Errorf("CIDRs %v, want %v", k.cidrs, tt.want)
			}
			// What failed keeps nothing from following the VPC's IPv4.
			more := append(slices.Clone(tt.known), netip.MustParsePrefix("100.64.0.0/16"))
			if cidrs, changed, err := v.set(t.Context(), more); err != nil || !changed || !slices.Contains(cidrs, more[len(more)-1]) {
				t.Errorf("followed: %v %v, %v", cidrs, changed, err)
			}
		})
	}
}

// A daemon that is started again has IPv6 from the start where pods have it, whatever
// new pods are to get.
func TestIPv6AfterARestart(t *testing.T) {
	for name, tt := range map[string]struct {
		routes     []string
		branches   []string
		own, local bool
	}{
		"no pods":         {},
		"IPv4":            {routes: []string{"10.0.0.5"}},
		"IPv6, by IPv4":   {routes: []string{"2001:db8::5", "169.254.172.5"}, own: true},
		"dual":            {routes: []string{"10.0.0.5", "10.0.0.6", "2001:db8::6"}, own: true},
		"branches":        {routes: []string{"10.0.0.5"}, branches: []string{"10.0.0.6", "2001:db8::6"}, own: true},
		"IPv4 branches":   {branches: []string{"10.0.0.6"}},
		"IPv4, with IPv6": {routes: []string{"10.0.0.5", "fd00::ac:5"}, local: true},
	} {
		var inv datapath.Inventory
		for _, a := range tt.routes {
			inv.Routes = append(inv.Routes, datapath.RouteInfo{Addr: netip.MustParseAddr(a)})
		}
		for _, a := range tt.branches {
			inv.Branches = append(inv.Branches, netip.MustParseAddr(a))
		}
		if own, local := ipv6OfPods(inv); own != tt.own || local != tt.local {
			t.Errorf("%s: own %v, node-local %v", name, own, local)
		}
	}
}

// A node that has no IPv4 address has no data path of it, and hands out no such address, whoever gives some.
func TestNodeWithoutIPv4(t *testing.T) {
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")}
	k := &kernelOfENIs{}
	v := &vpcNetworks{vpcDatapath: k, noIPv4: true, onDemand: true}
	if k.cidrs = v.start(both, true); !slices.Equal(k.cidrs, both[1:]) {
		t.Errorf("CIDRs %v, want %v", k.cidrs, both[1:])
	}
	e := eni.ENI{ID: "eni-1", IPv6: []netip.Addr{netip.MustParseAddr("2001:db8::7")}}
	if err := v.SetENI(t.Context(), e); err != nil {
		t.Error(err)
	}
	e.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if err := v.SetENI(t.Context(), e); err == nil || !strings.Contains(err.Error(), "ip-families") || len(k.enis) != 1 {
		t.Errorf("with an IPv4 address: %v, set %v", err, k.enis)
	}
	if cidrs, changed, err := v.set(t.Context(), append(both, netip.MustParsePrefix("100.64.0.0/16"))); err != nil || changed || len(cidrs) != 1 {
		t.Errorf("a further CIDR of IPv4: %v %v, %v", cidrs, changed, err)
	}
}
