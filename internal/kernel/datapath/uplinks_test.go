package datapath

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A node whose pods have ports only keeps nothing of ENIs and blocks, which come again
// with them.
func TestPorts(t *testing.T) {
	v := newVPC(t)
	for name, before := range map[string]Wanted{
		"ENIs":   {Config: v.settings(), Carriers: UplinkList{v.uplink()}},
		"blocks": {Config: Config{Uplinks: Routed{ExportTable: 119, IPv6: true}}, Carriers: BlockList{block("b", block4)}},
	} {
		n := v.host.open()
		v.ok(n.Setup(ctx, before.Config))
		_, err := n.Repair(ctx, before)
		v.host.must(err)
		ports := Wanted{Config: Config{Uplinks: Ports{}}}
		v.ok(n.Setup(ctx, ports.Config))
		inv, err := n.Inventory(ctx)
		v.host.must(err)
		rules := slices.ContainsFunc(inv.Rules, func(r RuleInfo) bool { return r.Priority != RulePod })
		if len(inv.Uplinks)+len(inv.Blocks) > 0 || rules {
			t.Errorf("%s: Setup left %+v", name, inv)
		}
		if did, err := n.Repair(ctx, ports); err != nil || len(did) > 0 {
			t.Errorf("%s: a repair did %v, %v", name, did, err)
		}
		if err := n.SetUplink(ctx, v.uplink()); err == nil {
			t.Errorf("%s: an ENI is taken where there is no VPC", name)
		}
		v.ok(n.Setup(ctx, before.Config))
		_, err = n.Repair(ctx, before)
		v.host.must(err)
		if inv, err = n.Inventory(ctx); err != nil || len(inv.Uplinks)+len(inv.Blocks) != 1 {
			t.Errorf("%s: they did not come again: %+v, %v", name, inv, err)
		}
	}
}

// A node of ports alone does not forward IPv6: that would cost it a default route that a
// router advertised, and a kernel without IPv6 has no such setting.
func TestPortsLeaveIPv6Alone(t *testing.T) {
	for _, s := range nodeSysctls(Ports{}, nil) {
		if strings.HasPrefix(s.Path, "net/ipv6/") {
			t.Errorf("sets %s", s)
		}
	}
	for _, r := range nodeRules(Ports{}) {
		if r.Family != unix.AF_INET {
			t.Errorf("makes the rule %v", r)
		}
	}
}
