package oracle

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/ovn"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// routedNode returns a consistent node with one pod, whose first interface is a branch with VLAN 7.
func routedNode(mode plug.Enforcing, dual bool) (c *portNode, p *node.Pod, n *v1alpha1.PodNIC, in podLink) {
	const id, container, mac = "eni-1", "c1", "0a:00:00:00:00:01"
	families := ipfamily.OnlyIPv4
	if dual {
		families = ipfamily.Dual
	}
	n = &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Name: "web-eth0"}}
	n.Status = v1alpha1.PodNICStatus{
		Phase: v1alpha1.PhaseActive, NodeName: "a", PortID: id, MAC: mac, Interface: firstInterface,
		Addresses: []v1alpha1.PortAddress{{CIDR: "10.0.1.9/24", Gateway: "10.0.1.1"}},
		Plug:      &v1alpha1.PortPlug{Type: v1alpha1.PlugVLAN, VLAN: 7},
		Node:      &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: id, ContainerID: container},
	}
	family := unix.AF_INET
	rule := func(priority, table int, iif string) netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.IifName = family, priority, table, iif
		return *r
	}
	route := func(table, link int, to string) netlink.Route {
		return netlink.Route{Table: table, LinkIndex: link, Dst: rtnl.IPNet(netip.MustParsePrefix(to))}
	}
	own, shared := datapath.BranchTableBase+7, datapath.StandardTable
	if mode == plug.Strict {
		shared = datapath.StrictTable
	}
	rules := func() []netlink.Rule {
		if mode == plug.Standard {
			return []netlink.Rule{rule(0, unix.RT_TABLE_LOCAL, ""), rule(datapath.RuleBranchPod, shared, ""), rule(datapath.RuleBranchStandard, own, "bthabc")}
		}
		list := []netlink.Rule{
			rule(datapath.RuleBranchPast, 0, ""), rule(datapath.RuleBranchOut, own, "bthabc"), rule(datapath.RuleBranchIn, shared, ""),
			rule(datapath.RuleBranchSource, shared, "lo"), rule(datapath.RuleBranchNone, 0, ""), rule(datapath.RuleLocal, unix.RT_TABLE_LOCAL, ""),
		}
		if family == unix.AF_INET {
			list = append(list, rule(datapath.RuleBranchOut, shared, "vlabc"))
		}
		return list
	}
	k := branchKernel{rules: rules(), chains: []string{"from_pod_abc", "from_vlan_abc", "to_vlan_abc"}}
	k.routes = []netlink.Route{route(own, 5, "10.0.1.9/32"), route(shared, 5, "10.0.1.9/32"), route(own, 6, "10.0.1.1/32"), route(own, 6, "0.0.0.0/0")}
	in = podLink{mac: mac, peer: 5, addrs: []string{"10.0.1.9/32"}}
	family = unix.AF_INET6
	if dual {
		n.Status.Addresses = append(n.Status.Addresses, v1alpha1.PortAddress{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"})
		in.addrs = append(in.addrs, "2001:db8::9/128")
		k.rules = append(k.rules, rules()...)
		k.routes = append(k.routes, route(own, 5, "2001:db8::9/128"), route(shared, 5, "2001:db8::9/128"), route(own, 6, "fe80:ec2::1/128"), route(own, 6, "::/0"))
	} else {
		k.rules = append(k.rules, rule(0, unix.RT_TABLE_LOCAL, ""))
	}
	c = &portNode{
		portView: &portView{used: map[string]string{}, ports: map[string]portcloud.Port{id: {
			ID: id, MAC: mac, Host: "a", Status: "ACTIVE", Addresses: []portcloud.Address{{IP: netip.MustParseAddr("10.0.1.9")}, {IP: netip.MustParseAddr("2001:db8::9")}},
		}}, families: map[string]ipfamily.Set{"": families}},
		node:  &node.Node{Options: node.Options{Name: "a"}},
		rows:  map[string]ovn.Interface{id: {Link: "vlabc", Port: id}},
		links: map[string]bool{"vlabc": true, "bthabc": true}, indexes: map[string]int{"bthabc": 5, "vlabc": 6},
		records: map[string]string{id: container}, modes: map[string]plug.Enforcing{id: mode}, shared: map[sharedRules]bool{},
		branches: k,
	}
	return c, &node.Pod{Node: "a", Name: "web", ContainerID: container}, n, in
}

// The oracle reports missing state of a pod whose first interface is a branch, and leaked state.
func TestRoutedPodsOnTheNode(t *testing.T) {
	takeRuleOf := func(family, priority int, iif string) func(*portNode, *podLink) {
		return func(c *portNode, _ *podLink) {
			c.branches.takeRules(func(r netlink.Rule) bool { return r.Family == family && r.Priority == priority && r.IifName == iif })
		}
	}
	takeRule := func(priority int, iif string) func(*portNode, *podLink) {
		return takeRuleOf(unix.AF_INET, priority, iif)
	}
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		for what, tc := range map[string]struct {
			of   plug.Enforcing // empty: both
			do   func(c *portNode, in *podLink)
			want string
		}{
			"as it should be":      {"", func(*portNode, *podLink) {}, ""},
			"the subnet's prefix":  {"", func(_ *portNode, in *podLink) { in.addrs[0] = "10.0.1.9/24" }, "interface eth0 has"},
			"another address":      {"", func(_ *portNode, in *podLink) { in.addrs[0] = "10.0.1.8/32" }, "interface eth0 has"},
			"another MAC address":  {"", func(_ *portNode, in *podLink) { in.mac = "0a:00:00:00:00:02" }, "interface eth0 has"},
			"another link's end":   {"", func(_ *portNode, in *podLink) { in.peer = 8 }, "is link 8 of the node"},
			"no veth on the node":  {"", func(c *portNode, _ *podLink) { delete(c.links, "bthabc") }, "in the kernel: false"},
			"no VLAN on the node":  {"", func(c *portNode, _ *podLink) { delete(c.links, "vlabc") }, "in the kernel: false"},
			"a link of no pod":     {"", func(c *portNode, _ *podLink) { c.links["vlother"] = true }, "link vlother is leaked"},
			"no rule of the pod":   {plug.Strict, takeRule(datapath.RuleBranchOut, "bthabc"), "0 policy rules of mode strict by bthabc for 10.0.1.9/24"},
			"no rule of the VLAN":  {plug.Strict, takeRule(datapath.RuleBranchOut, "vlabc"), "0 policy rules of mode strict by vlabc for 10.0.1.9/24"},
			"no standard rule":     {plug.Standard, takeRule(datapath.RuleBranchStandard, "bthabc"), "0 policy rules of mode standard by bthabc"},
			"no shared rule":       {plug.Strict, takeRule(datapath.RuleBranchNone, ""), "0 rules with priority 16"},
			"no shared one":        {plug.Standard, takeRule(datapath.RuleBranchPod, ""), "0 rules with priority 511"},
			"no local rule":        {plug.Standard, takeRule(0, ""), "0 rules with priority 0"},
			"no local rule behind": {plug.Strict, takeRule(datapath.RuleLocal, ""), "0 rules with priority 20"},
			"no route to the pod":  {"", func(c *portNode, _ *podLink) { c.branches.routes = c.branches.routes[1:] }, "table 19107 has 0 routes to 10.0.1.9/32"},
			"no default route": {"", func(c *portNode, _ *podLink) {
				c.branches.routes = append(c.branches.routes[:3], c.branches.routes[4:]...)
			}, "table 19107 has 0 routes to 0.0.0.0/0"},
			"a chain less":        {"", func(c *portNode, _ *podLink) { c.branches.chains = c.branches.chains[1:] }, "2 chains"},
			"a chain of no pod":   {"", func(c *portNode, _ *podLink) { c.branches.chains = append(c.branches.chains, "to_vlan_other") }, "to_vlan_other is leaked"},
			"a mode that is none": {"", func(c *portNode, _ *podLink) { c.modes["eni-1"] = "" }, "enforcing mode"},
			"the local rule of both": {plug.Strict, func(c *portNode, _ *podLink) {
				c.branches.rules = append(c.branches.rules, netlink.Rule{Family: unix.AF_INET})
			}, "1 rules with priority 0"},
			"no rule of IPv6":        {plug.Strict, takeRuleOf(unix.AF_INET6, datapath.RuleBranchOut, "bthabc"), "0 policy rules of mode strict by bthabc for 2001:db8::9/64"},
			"no shared rule of IPv6": {plug.Strict, takeRuleOf(unix.AF_INET6, datapath.RuleBranchNone, ""), "0 rules with priority 16 of family 10"},
			"no local rule of IPv6":  {plug.Standard, takeRuleOf(unix.AF_INET6, 0, ""), "0 rules with priority 0 of family 10"},
			"a rule of IPv6 too many": {plug.Strict, func(c *portNode, _ *podLink) {
				c.branches.rules = append(c.branches.rules, netlink.Rule{Family: unix.AF_INET6, Priority: datapath.RuleBranchOut, IifName: "vlabc"})
			}, "1 policy rules of mode strict by vlabc for 2001:db8::9/64, want 0"},
			"no IPv6 in the pod": {"", func(_ *portNode, in *podLink) { in.addrs = in.addrs[:1] }, "interface eth0 has"},
			"no IPv6 at EC2": {"", func(c *portNode, _ *podLink) {
				p := c.ports["eni-1"]
				p.Addresses = p.Addresses[:1]
				c.ports["eni-1"] = p
			}, "port eni-1 has"},
			"no default route of IPv6": {"", func(c *portNode, _ *podLink) { c.branches.routes = c.branches.routes[:7] }, "table 19107 has 0 routes to ::/0"},
			"a rule of no pod": {"", func(c *portNode, _ *podLink) {
				c.branches.rules = append(c.branches.rules, netlink.Rule{Family: unix.AF_INET, Priority: datapath.RuleBranchOut, IifName: "bthother"})
			}, `by "bthother" is leaked`},
			"a rule of the other mode": {plug.Strict, func(c *portNode, _ *podLink) {
				c.branches.rules = append(c.branches.rules, netlink.Rule{Family: unix.AF_INET, Priority: datapath.RuleBranchStandard, IifName: "bthabc"})
			}, `by "bthabc" is leaked`},
			"a route of no pod": {"", func(c *portNode, _ *podLink) {
				c.branches.routes = append(c.branches.routes, netlink.Route{Table: datapath.BranchTableBase + 8, LinkIndex: 6})
			}, "table 19108 is leaked"},
		} {
			if tc.of != "" && tc.of != mode {
				continue
			}
			c, p, n, in := routedNode(mode, true)
			tc.do(c, &in)
			if err := c.checkNIC(p, n, in); err != nil {
				c.wrong("%w", err)
			}
			c.checkLeaks()
			text := ""
			for _, err := range c.errs {
				text += err.Error() + "\n"
			}
			if (text != "") != (tc.want != "") || !strings.Contains(text, tc.want) {
				t.Errorf("%s, %s: found %q, want %q", mode, what, text, tc.want)
			}
		}
	}
}

// An IPv4-only branch has no IPv6 state, regardless of the addresses of its ENI.
func TestRoutedPodsOfOneFamily(t *testing.T) {
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		c, p, n, in := routedNode(mode, false)
		err := c.checkNIC(p, n, in)
		c.checkLeaks()
		if err != nil || len(c.errs) > 0 {
			t.Errorf("%s: %v, %v", mode, err, c.errs)
		}
	}
}

// A pod whose first interface is a branch has neither addresses of its node's ENIs nor routes in the pod table.
func TestRoutedPodsHaveNothingOfTheNodes(t *testing.T) {
	own, branch := netip.MustParseAddr("10.0.0.20"), netip.MustParseAddr("10.0.1.9")
	for what, tc := range map[string]struct {
		k    kernelState
		has  netip.Addr
		want string
	}{
		"as it should be":   {kernelState{}, branch, ""},
		"an ENI's address":  {kernelState{}, own, "an address of an ENI of this node"},
		"a route to it":     {kernelState{routes: map[netip.Addr]int{branch: 5}}, branch, "a route to 10.0.1.9"},
		"the node has it":   {kernelState{addrs: map[netip.Addr]string{branch: "lo"}}, branch, "the node has on lo"},
		"its link is known": {kernelState{links: map[int]string{5: "bthabc"}}, branch, ""},
	} {
		f := findings{node: &node.Node{Options: node.Options{Name: "a"}}, enis: []vpc.ENI{{Secondary: []netip.Addr{own}}}}
		f.checkRoutedPod(tc.k, &node.Pod{Name: "web"}, podState{peer: 5, addrs: []netip.Addr{tc.has}})
		text := ""
		for _, err := range f.errs {
			text += err.Error() + "\n"
		}
		if (text != "") != (tc.want != "") || !strings.Contains(text, tc.want) || len(tc.k.links) > 0 {
			t.Errorf("%s: found %q, want %q", what, text, tc.want)
		}
	}
}
