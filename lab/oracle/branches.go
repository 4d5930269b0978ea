package oracle

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// In operator mode a pod's first interface may be a branch interface, to which its node routes
// (docs/guides/ports/ec2-branches.md, "Branch interfaces of EC2"). Such a pod has no address of the node's ENIs. Its state on the node
// consists of two links, and of rules, routes and nftables chains named after them.

// routedPods returns the UIDs of pods whose first interface is a branch to which the node routes.
func routedPods(ctx context.Context, l *lab.Lab) (map[string]bool, error) {
	if l.Mode != lab.OperatorMode || !hasBranches(l) {
		return nil, nil
	}
	nics, err := l.Kube.PodNICs(ctx)
	if err != nil {
		return nil, err
	}
	pods := map[string]bool{}
	for _, n := range nics {
		if n.Status.Pod != nil && isRouted(&n) {
			pods[n.Status.Pod.UID] = true
		}
	}
	return pods, nil
}

// hasBranches reports whether pods' ports are branches of trunk ENIs.
func hasBranches(l *lab.Lab) bool {
	return l.Ports != nil && l.Ports.Access().Provider == v1alpha1.ProviderEC2
}

// isRouted reports whether a node routes to a PodNIC.
func isRouted(n *v1alpha1.PodNIC) bool {
	return n.Status.Interface == firstInterface && n.Status.Plug != nil && n.Status.Plug.Type == v1alpha1.PlugVLAN
}

// checkRoutedPod verifies that a pod whose first interface is a branch uses none of the node's own addresses.
func (f *findings) checkRoutedPod(k kernelState, p *node.Pod, s podState) {
	for _, a := range s.addrs {
		if slices.ContainsFunc(f.enis, func(e vpc.ENI) bool { return e.Owns(a) }) {
			f.wrong("pod %s has %s, an address of an ENI of this node, but its first interface should be a branch", p.Name, a)
		}
		if link, ok := k.addrs[a]; ok {
			f.wrong("pod %s has %s, which the node also has on %s", p.Name, a, link)
		}
		if i, ok := k.routes[a]; ok {
			f.wrong("pod %s has a branch as its first interface, and a route to %s leads to link %d", p.Name, a, i)
		}
	}
	delete(k.links, s.peer)
}

// branchKernel is the kernel state of a node for pods whose first interface is a branch.
type branchKernel struct {
	rules  []netlink.Rule  // of branches, and of the node's local table
	routes []netlink.Route // in the tables of branches
	chains []string        // of nftables
}

// branchRules are the priorities of the branches' rules; RuleLocal has another protocol.
var branchRules = []int{
	datapath.RuleBranchPast, datapath.RuleBranchOut, datapath.RuleBranchIn, datapath.RuleBranchSource, datapath.RuleBranchNone,
	datapath.RuleBranchPod, datapath.RuleBranchStandard,
}

func observeBranches(path string) (k branchKernel, err error) {
	if err := ns.Netlink(path, k.observe); err != nil {
		return k, err
	}
	return k, ns.Do(path, func() error {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
		for _, c := range chains {
			if c.Table.Name == datapath.BranchNftTable && c.Hooknum == nil {
				k.chains = append(k.chains, c.Name)
			}
		}
		return err
	})
}

func (k *branchKernel) observe(h *netlink.Handle) error {
	for _, family := range families {
		if err := k.observeFamily(h, family); err != nil {
			return err
		}
	}
	return nil
}

// families are the address families of rules and routes.
var families = []int{unix.AF_INET, unix.AF_INET6}

func (k *branchKernel) observeFamily(h *netlink.Handle, family int) error {
	rules, err := again(func() ([]netlink.Rule, error) { return h.RuleList(family) })
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		r.Family = family
		own := r.Protocol == datapath.Protocol && slices.Contains(branchRules, r.Priority)
		local := r.Table == unix.RT_TABLE_LOCAL && (r.Priority == 0 || r.Priority == datapath.RuleLocal)
		if own || local {
			k.rules = append(k.rules, r)
		}
	}
	routes, err := again(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if t := r.Table; r.Protocol == datapath.Protocol && (t == datapath.StrictTable || t == datapath.StandardTable || t > datapath.BranchTableBase && t <= datapath.BranchTableBase+maxVLAN) {
			k.routes = append(k.routes, r)
		}
	}
	return nil
}

// maxVLAN is the highest VLAN ID (IEEE 802.1Q).
const maxVLAN = 4094

// takeRules removes the rules that match one from the list, and returns their number.
func (k *branchKernel) takeRules(like func(netlink.Rule) bool) int {
	before := len(k.rules)
	k.rules = slices.DeleteFunc(k.rules, like)
	return before - len(k.rules)
}

// takeRoutes removes the matching routes of a table from the list, and returns their number.
func (k *branchKernel) takeRoutes(table int, to netip.Prefix, link int) int {
	before := len(k.routes)
	k.routes = slices.DeleteFunc(k.routes, func(r netlink.Route) bool {
		return r.Table == table && r.LinkIndex == link && rtnl.RouteDst(r) == to
	})
	return before - len(k.routes)
}

// routes reports whether the node routes to a PodNIC of a pod.
func (c *portNode) routes(n *v1alpha1.PodNIC) bool { return !c.first && isRouted(n) }

// checkRouted compares a pod's first interface, if it is a branch, with the node's state, and removes what it finds from
// that state. link is the VLAN link.
func (c *portNode) checkRouted(n *v1alpha1.PodNIC, in podLink, link string) error {
	if !c.routes(n) {
		return nil
	}
	end := strings.TrimPrefix(link, plug.VLANPrefix)
	veth, mode := datapath.LinkPrefix+end, c.modes[n.Status.PortID]
	if in.peer != c.indexes[veth] {
		return fmt.Errorf("the peer of its interface is link %d of the node, but %s is link %d", in.peer, veth, c.indexes[veth])
	}
	shared := datapath.StrictTable
	switch mode {
	case plug.Strict:
	case plug.Standard:
		shared = datapath.StandardTable
	default:
		return fmt.Errorf("the record has the enforcing mode %q", mode)
	}
	for _, a := range n.Status.Addresses {
		if err := c.checkRules(a, veth, link, mode); err != nil {
			return err
		}
	}
	if err := c.takeChains(end); err != nil {
		return err
	}
	return c.checkTables(n, datapath.BranchTableBase+int(n.Status.Plug.VLAN), shared, c.indexes[veth], c.indexes[link])
}

// checkRules verifies the rules of a branch's links for one of its addresses. The VLAN link has no IPv6 rule.
func (c *portNode) checkRules(a v1alpha1.PortAddress, veth, link string, mode plug.Enforcing) error {
	cidr, err := netip.ParsePrefix(a.CIDR)
	if err != nil {
		return err
	}
	family, priority, wanted := rtnl.FamilyOf(cidr.Addr()), datapath.RuleBranchStandard, 0
	if mode == plug.Strict {
		priority = datapath.RuleBranchOut
		if family == unix.AF_INET {
			wanted = 1
		}
	}
	c.shared[sharedRules{mode, family}] = true
	for name, want := range map[string]int{veth: 1, link: wanted} {
		got := c.branches.takeRules(func(r netlink.Rule) bool { return r.Family == family && r.IifName == name && r.Priority == priority })
		if got != want {
			return fmt.Errorf("the node has %d policy rules of mode %s by %s for %s, want %d", got, mode, name, a.CIDR, want)
		}
	}
	return nil
}

// sharedRules identifies the rules that all branches of a mode share in a family.
type sharedRules struct {
	mode   plug.Enforcing
	family int
}

// takeChains removes a branch's nftables chains, identified by a name suffix, from the list.
func (c *portNode) takeChains(end string) error {
	before := len(c.branches.chains)
	c.branches.chains = slices.DeleteFunc(c.branches.chains, func(name string) bool { return strings.HasSuffix(name, "_"+end) })
	if got := before - len(c.branches.chains); got != 3 {
		return fmt.Errorf("nftables has %d chains of the branch, want 3", got)
	}
	return nil
}

// checkTables verifies a branch's routes in its own table and in the table of its mode, given the indexes of its
// two links.
func (c *portNode) checkTables(n *v1alpha1.PodNIC, own, shared, veth, out int) error {
	for _, a := range n.Status.Addresses {
		cidr, err := netip.ParsePrefix(a.CIDR)
		if err != nil {
			return err
		}
		host := netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen())
		for _, table := range []int{own, shared} {
			if got := c.branches.takeRoutes(table, host, veth); got != 1 {
				return fmt.Errorf("table %d has %d routes to %s by its link, want 1", table, got, host)
			}
		}
		gateway, err := netip.ParseAddr(a.Gateway)
		if err != nil {
			return err
		}
		for _, to := range []netip.Prefix{netip.PrefixFrom(gateway, gateway.BitLen()), netip.PrefixFrom(rtnl.Unspecified(gateway), 0)} {
			if got := c.branches.takeRoutes(own, to, out); got != 1 {
				return fmt.Errorf("table %d has %d routes to %s by its VLAN, want 1", own, got, to)
			}
		}
	}
	return nil
}

// checkSharedBranches verifies the rules that all branches of a mode share, and looks for leaked state.
func (c *portNode) checkSharedBranches() {
	for _, family := range families {
		strict, standard := c.shared[sharedRules{plug.Strict, family}], c.shared[sharedRules{plug.Standard, family}]
		for _, of := range []struct {
			priority int
			wanted   bool
		}{
			{0, !strict}, {datapath.RuleLocal, strict}, {datapath.RuleBranchPast, strict}, {datapath.RuleBranchIn, strict},
			{datapath.RuleBranchSource, strict}, {datapath.RuleBranchNone, strict}, {datapath.RuleBranchPod, standard},
		} {
			want := 0
			if of.wanted {
				want = 1
			}
			if got := c.branches.takeRules(func(r netlink.Rule) bool { return r.Family == family && r.Priority == of.priority }); got != want {
				c.wrong("%d rules with priority %d of family %d, which branches share, want %d with those of mode %v", got, of.priority, family, want, c.shared)
			}
		}
	}
	for _, r := range c.branches.rules {
		c.wrong("%s by %q is leaked: no pod has a branch there", r, r.IifName)
	}
	for _, r := range c.branches.routes {
		c.wrong("the route %s of table %d is leaked: no pod has a branch there", r, r.Table)
	}
	for _, name := range c.branches.chains {
		c.wrong("nftables chain %s is leaked: no pod has a branch there", name)
	}
}
