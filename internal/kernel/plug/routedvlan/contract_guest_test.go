//go:build guest

package routedvlan

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/test/harness"
)

// points are the failpoints of Plug and Unplug.
func points() []string {
	return slices.DeleteFunc(failpoint.Names(), func(n string) bool {
		return !strings.HasPrefix(n, "plug.routed.") && !strings.HasPrefix(n, "plug.vlan.ma") && !strings.HasPrefix(n, "plug.link.")
	})
}

func TestContract(t *testing.T) {
	type branch struct {
		mode     plug.Enforcing
		families ipfamily.Set
		points   []string
	}
	for _, tc := range harness.Sample(t, 2, []branch{
		{plug.Strict, ipfamily.OnlyIPv4, harness.Sample(t, 5, points())},
		{plug.Standard, ipfamily.OnlyIPv4, harness.WithAll(points())},
		{plug.Strict, ipfamily.Dual, harness.Sample(t, 5, points())},
		{plug.Standard, ipfamily.OnlyIPv6, harness.WithAll(points())},
	}) {
		t.Run(string(tc.mode)+" "+string(tc.families), func(t *testing.T) {
			plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
				w := newWorld(t)
				w.families = tc.families
				return plugtest.Fixture{
					Plugger: w.plugger,
					Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
						return w.want(7, tc.mode, attachment, portID, pod)
					},
					State: w.state,
				}
			}, tc.points...)
		})
	}
}

// After it is associated again, a branch has another VLAN. Plug replaces the link and removes all state of the old VLAN
// from the node, even after a crash at any failpoint.
func TestBranchAssociatedAgain(t *testing.T) {
	w := newWorld(t)
	w.families = ipfamily.Dual
	pod := plugtest.Space(t, "pod")
	old := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, pod)
	now := old
	now.VLAN = 8
	before := w.state()
	plugged := func(want plug.Want) {
		t.Helper()
		plugtest.Plugged(t, w.plugger(), want)
	}
	for _, point := range append(harness.Sample(t, 7, points()), "") {
		plugged(old)
		if point != "" {
			restore, err := failpoint.Set(point + "=error")
			plugtest.Must(t, err)
			_, err = w.plugger().Plug(plugtest.Bounded(t), now)
			restore()
			if err != nil && !errors.Is(err, failpoint.ErrHit) {
				t.Fatal(err)
			}
		}
		plugged(now)
		for _, in := range []string{"ip rule", "ip route show table all", "ip -6 rule", "ip -6 route show table all", "nft list ruleset"} {
			program, args, _ := strings.Cut(in, " ")
			if text := w.run(w.node, program, args); strings.Contains(text, "19107") || strings.Contains(text, "24583") {
				t.Errorf("after %q, %s still has state of VLAN 7:\n%s", point, in, text)
			}
		}
		if err := w.plugger().Check(plugtest.Bounded(t), old); err == nil {
			t.Error("Check() succeeds for the old VLAN")
		}
	}
	plugtest.Must(t, w.plugger().Unplug(plugtest.Bounded(t), now.Ref))
	if got := w.state(); got != before {
		t.Errorf("state after Unplug():\n%s\nbefore:\n%s", got, before)
	}
}

// If the port has no MTU, as with EC2, all links get the MTU of the trunk, and Plug returns it.
func TestMTUOfTrunk(t *testing.T) {
	w := newWorld(t)
	plugtest.Must(t, w.node.NL.LinkSetMTU(plugtest.Link(t, w.node, "ens6"), 9001))
	want := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod"))
	want.Interface.MTU = 0
	done, err := w.plugger().Plug(plugtest.Bounded(t), want)
	plugtest.Must(t, err)
	want.Interface.MTU = done.MTU
	if err := w.plugger().Check(plugtest.Bounded(t), want); err != nil || done.MTU != 9001 {
		t.Errorf("MTU = %d, want 9001; Check() error = %v", done.MTU, err)
	}
}

// Check finds changes to the VLAN link, and Plug reverts them.
func TestVLANLinkChangesAreReverted(t *testing.T) {
	w := newWorld(t)
	want := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod"))
	plugged := func() {
		t.Helper()
		plugtest.Plugged(t, w.plugger(), want)
	}
	plugged()
	for says, change := range map[string]func(netlink.Link) error{
		"has MAC address 02:00:00:00:00:01": func(l netlink.Link) error {
			return w.node.NL.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 1})
		},
		"has MTU 1300": func(l netlink.Link) error { return w.node.NL.LinkSetMTU(l, 1300) },
		"is down":      w.node.NL.LinkSetDown,
	} {
		plugtest.Must(t, change(plugtest.Link(t, w.node, want.VLANLink())))
		plugtest.Differs(t, w.plugger(), want, want.VLANLink()+" "+says)
		plugged()
	}
}

// The kernel's rule for local addresses moves behind the rules of strict branches while there is
// one. At each moment, one of the two positions has it. Rules of other software stay.
func TestLocalAddressRulePosition(t *testing.T) {
	for _, f := range ipfamily.Dual.Families() {
		t.Run(f.String(), func(t *testing.T) { ruleOfLocalAddresses(t, f) })
	}
}

func ruleOfLocalAddresses(t *testing.T, f ipfamily.Family) {
	w := newWorld(t)
	w.families = f.Alone()
	ip := plans[f].ip
	w.run(w.node, "ip", fmt.Sprintf("%s rule add priority 100 from %s lookup 77", ip, plans[f].service(7)))
	before := w.run(w.node, "ip", "rule") + w.run(w.node, "ip", "-6 rule")
	strict := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod"))
	standard := w.want(8, plug.Standard, plugtest.Two, plugtest.PortB, plugtest.Space(t, "pod"))
	local := func(want ...string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(w.run(w.node, "ip", ip+" rule")) {
			if strings.Contains(line, "lookup local") {
				got = append(got, strings.Fields(line)[0])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("priorities of rules for local addresses = %v, want %v", got, want)
		}
	}
	set := func(want plug.Want) {
		t.Helper()
		plugtest.Plugged(t, w.plugger(), want)
	}
	unplug := func(r plug.Ref) {
		t.Helper()
		plugtest.Must(t, w.plugger().Unplug(plugtest.Bounded(t), r))
	}
	local("0:")
	set(standard)
	local("0:")
	set(strict)
	local("20:")
	w.run(w.node, "ip", ip+" rule add priority 0 lookup local") // as other software may do when it reconfigures the network
	plugtest.Differs(t, w.plugger(), strict, "policy rule 0")
	set(strict)
	local("20:")
	unplug(standard.Ref)
	local("20:")
	unplug(strict.Ref)
	if after := w.run(w.node, "ip", "rule") + w.run(w.node, "ip", "-6 rule"); after != before {
		t.Errorf("rules at the end:\n%swant, as at the start:\n%s", after, before)
	}
}
