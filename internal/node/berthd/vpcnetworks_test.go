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

// kernelOfENIs is a data path that records the configuration it receives.
type kernelOfENIs struct {
	cidrs  []netip.Prefix
	enis   []string
	noIPv6 error // error of setting IPv6 CIDRs
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

// Pods get IPv6 addresses only if the data path has IPv6, which the setting or the operator's first
// IPv6 address turns on.
func TestDataPathTurnsIPv6On(t *testing.T) {
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
		"IPv4":                               {known: both, e: plain, want: both[:1]},
		"IPv4, ENI has IPv6":                 {known: both, e: dual, want: both[:1]},
		"set":                                {set: true, known: both, e: plain, want: both},
		"IPv6, block added to the VPC later": {set: true, known: both[:1], asked: both, e: dual, want: both},
		"IPv6, VPC without a block":          {set: true, known: both[:1], asked: both[:1], e: dual, fails: true, want: both[:1]},
		"operator assigned no IPv6":          {onDemand: true, known: both, e: plain, want: both[:1]},
		"operator assigned a prefix":         {onDemand: true, known: both, e: dual, want: both},
		"operator assigned an address":       {onDemand: true, known: both, e: single, want: both},
		"VPC CIDRs unknown":                  {onDemand: true, known: both[:1], e: dual, fails: true, want: both[:1]},
		"kernel without IPv6":                {onDemand: true, known: both, kernel: errors.New("ipv6.disable=1"), e: dual, fails: true, want: both[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kernelOfENIs{noIPv6: tt.kernel}
			v := &vpcNetworks{vpcDatapath: k, onDemand: tt.onDemand, ask: func(context.Context) ([]netip.Prefix, bool) { return tt.asked, tt.asked != nil }}
			k.cidrs = v.start(tt.known, tt.set)
			if err := v.SetENI(t.Context(), tt.e); (err != nil) != tt.fails || (len(k.enis) == 0) != tt.fails {
				t.Errorf("SetENI() = %v, want error: %t; ENIs %v", err, tt.fails, k.enis)
			}
			if !slices.Equal(k.cidrs, tt.want) {
				t.Errorf("CIDRs = %v, want %v", k.cidrs, tt.want)
			}
			// A failure must not keep later IPv4 CIDRs of the VPC from being applied.
			more := append(slices.Clone(tt.known), netip.MustParsePrefix("100.64.0.0/16"))
			if cidrs, changed, err := v.set(t.Context(), more); err != nil || !changed || !slices.Contains(cidrs, more[len(more)-1]) {
				t.Errorf("set() = %v, %v, %v, want the new CIDR", cidrs, changed, err)
			}
		})
	}
}

// A restarted daemon has IPv6 from the start if running pods have it, regardless of the families
// that new pods get.
func TestIPv6AfterARestart(t *testing.T) {
	for name, tt := range map[string]struct {
		routes     []string
		branches   []string
		own, local bool
	}{
		"no pods":               {},
		"IPv4":                  {routes: []string{"10.0.0.5"}},
		"IPv6, node-local IPv4": {routes: []string{"2001:db8::5", "169.254.172.5"}, own: true},
		"dual":                  {routes: []string{"10.0.0.5", "10.0.0.6", "2001:db8::6"}, own: true},
		"branches":              {routes: []string{"10.0.0.5"}, branches: []string{"10.0.0.6", "2001:db8::6"}, own: true},
		"IPv4 branches":         {branches: []string{"10.0.0.6"}},
		"IPv4, node-local IPv6": {routes: []string{"10.0.0.5", "fd00::ac:5"}, local: true},
	} {
		var inv datapath.Inventory
		for _, a := range tt.routes {
			inv.Routes = append(inv.Routes, datapath.RouteInfo{Addr: netip.MustParseAddr(a)})
		}
		for _, a := range tt.branches {
			inv.Branches = append(inv.Branches, netip.MustParseAddr(a))
		}
		if own, local := ipv6OfPods(inv); own != tt.own || local != tt.local {
			t.Errorf("%s: own = %v, node-local = %v, want %v, %v", name, own, local, tt.own, tt.local)
		}
	}
}

// A node without an IPv4 address has no IPv4 data path, and never assigns IPv4 addresses, regardless of the source.
func TestNodeWithoutIPv4(t *testing.T) {
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")}
	k := &kernelOfENIs{}
	v := &vpcNetworks{vpcDatapath: k, noIPv4: true, onDemand: true}
	if k.cidrs = v.start(both, true); !slices.Equal(k.cidrs, both[1:]) {
		t.Errorf("CIDRs = %v, want %v", k.cidrs, both[1:])
	}
	e := eni.ENI{ID: "eni-1", IPv6: []netip.Addr{netip.MustParseAddr("2001:db8::7")}}
	if err := v.SetENI(t.Context(), e); err != nil {
		t.Error(err)
	}
	e.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if err := v.SetENI(t.Context(), e); err == nil || !strings.Contains(err.Error(), "ip-families") || len(k.enis) != 1 {
		t.Errorf("SetENI() with an IPv4 address = %v, ENIs %v", err, k.enis)
	}
	if cidrs, changed, err := v.set(t.Context(), append(both, netip.MustParsePrefix("100.64.0.0/16"))); err != nil || changed || len(cidrs) != 1 {
		t.Errorf("set() with a further IPv4 CIDR = %v, %v, %v, want no change", cidrs, changed, err)
	}
}
