//go:build guest

package routedvlan

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/test/harness"
)

// Check finds changed sysctls, and Plug reverts them. An IPv4 branch of mode standard needs none.
func TestSettings(t *testing.T) {
	type branch struct {
		mode     plug.Enforcing
		families ipfamily.Set
		settings int
	}
	for _, tc := range harness.Sample(t, 3, []branch{
		{plug.Strict, ipfamily.OnlyIPv4, 4}, {plug.Standard, ipfamily.OnlyIPv4, 0},
		{plug.Strict, ipfamily.OnlyIPv6, 6}, {plug.Standard, ipfamily.OnlyIPv6, 4},
		{plug.Strict, ipfamily.Dual, 8}, {plug.Standard, ipfamily.Dual, 4},
	}) {
		w := newWorld(t)
		w.families = tc.families
		w.run(w.node, "sysctl", "-q -w net.ipv6.conf.default.disable_ipv6=1") // as on some nodes
		want, p := w.want(7, tc.mode, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod")), w.plugger()
		plugged := func() {
			t.Helper()
			plugtest.Plugged(t, p, want)
		}
		plugged()
		settings := branchOf(want).sysctls()
		if len(settings) != tc.settings {
			t.Errorf("%s %s: the settings are %v, want %d", tc.mode, tc.families, settings, tc.settings)
		}
		for _, s := range settings {
			other := map[string]string{"0": "1", "1": "0"}[s.Value]
			plugtest.Must(t, ns.Do(w.node.Path, func() error { return ns.SetSysctls(ns.Sysctl{Name: s.Path, Value: other}) }))
			plugtest.Differs(t, p, want, "sysctl "+s.String()+" is "+other)
			plugged()
			if now := w.value(s); now != s.Value {
				t.Errorf("%s is %s after Plug", s.Path, now)
			}
		}
	}
}

// The VLAN link has its own link-local address at once, so that the node finds the router. Plug
// restores the address.
func TestOwnAddressOfTheVLAN(t *testing.T) {
	w := newWorld(t)
	w.families = ipfamily.Dual
	want, p := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod")), w.plugger()
	for range 2 {
		plugtest.Plugged(t, p, want)
		if text := w.run(w.node, "ip", "-6 addr show dev "+want.VLANLink()); !strings.Contains(text, "fe80::8ff:ffff:fe00:107/64 scope link") || strings.Contains(text, "tentative") {
			t.Errorf("the VLAN's link has\n%s", text)
		}
		w.run(w.node, "ip", "-6 addr flush dev "+want.VLANLink())
		plugtest.Differs(t, p, want, "lacks its own address fe80::8ff:ffff:fe00:107/64")
	}
}

// value is a sysctl of the node.
func (w *world) value(s rtnl.Sysctl) (now string) {
	w.t.Helper()
	plugtest.Must(w.t, ns.Do(w.node.Path, func() (err error) {
		now, _, err = s.Look("")
		return err
	}))
	return now
}
