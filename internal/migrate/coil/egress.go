package coil

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Pods that use an Egress of Coil have tunnels to its Service, rules and routes in their network namespace. berthd sets them
// aside when it gives such a pod tunnels of its own (package egressclient), Rollback restores them, and Finish removes them.

// egressUse is what a pod has of Coil's Egresses.
type egressUse struct {
	client  bool
	inForce bool // its packets go through Coil's tunnels
}

// inPod calls do in the network namespace of a pod. It does nothing if the pod is gone.
func inPod(of attachment.Netns, do func(netns.NsHandle, *netlink.Handle) error) error {
	ns, err := rtnl.OpenPodNetns(of.Path, rtnl.NetnsID{Dev: of.Dev, Inode: of.Inode}, rtnl.NetnsID{})
	if errors.Is(err, rtnl.ErrNoNetns) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func(ns netns.NsHandle) { _ = ns.Close() }(ns)
	h, err := rtnl.Handle(ns)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", of.Path, err)
	}
	defer h.Close()
	if err := do(ns, h); err != nil {
		return fmt.Errorf("in %s: %w", of.Path, err)
	}
	return nil
}

// egressOf reports what a pod has of Coil's Egresses.
func egressOf(of attachment.Netns) (u egressUse, err error) {
	if of.Path == "" {
		return u, nil
	}
	err = inPod(of, func(_ netns.NsHandle, h *netlink.Handle) error {
		var err error
		u.client, u.inForce, err = egressclient.Former(h)
		return err
	})
	return u, err
}

// clients counts the pods that use an Egress of Coil, and those of them whose packets go through its tunnels.
func (s state) clients() (all, inForce int) {
	for _, p := range s.pods {
		if p.Egress.client {
			all++
		}
		if p.Egress.inForce {
			inForce++
		}
	}
	return all, inForce
}

// restoreEgress gives an adopted pod the tunnels of Coil again.
func restoreEgress(ctx context.Context, rec attachment.Record) error {
	err := egressclient.Apply(ctx, rec.Netns.Path, egressclient.Setup{Adopted: true})
	if errors.Is(err, egressclient.ErrNoNetns) {
		return nil
	}
	return err
}

// removeEgress removes what Coil made in a pod that used its Egresses.
func removeEgress(rec attachment.Record) (changed bool, err error) {
	err = inPod(rec.Netns, func(ns netns.NsHandle, h *netlink.Handle) error {
		links, err := rtnl.Whole(h.LinkList)
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		mark := -1
		for i, l := range links {
			switch l.Attrs().Name {
			case egressclient.FormerMark:
				mark = i
			case egressclient.FormerGatewayMark:
				return nil // a gateway goes as a whole
			}
		}
		if mark < 0 {
			return nil
		}
		changed = true
		if err := removeEgressRules(h); err != nil {
			return err
		}
		if err := removeMangle(ns); err != nil {
			return err
		}
		if err := removeEgressLinks(h, links); err != nil {
			return err
		}
		if err := removePorts(h); err != nil {
			return err
		}
		return h.LinkDel(links[mark]) // last, since it says that there is something to remove
	})
	return changed, err
}

// answerBy has the answers of a client with --enable-originating-only, whose table is a copy of the main table, leave by
// gateways, one of each family. at is the MAC address of Berth's gateways; nil: they are Coil's, and resolved by ARP. A node of
// Berth answers no ARP requests for Coil's gateway, and before Linux 6.2 the pod loses the entry for it when its link is renamed.
func answerBy(of attachment.Netns, ifName string, gateways []netip.Addr, at net.HardwareAddr) error {
	return inPod(of, func(_ netns.NsHandle, h *netlink.Handle) error {
		link, err := h.LinkByName(ifName)
		if rtnl.IsNoLink(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look up %s: %w", ifName, err)
		}
		for _, gw := range gateways {
			family := rtnl.FamilyOf(gw)
			rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return h.RuleList(family) })
			if err != nil {
				return fmt.Errorf("list rules: %w", err)
			}
			for _, r := range rules {
				if r.Priority != ruleOwnWay || !isEgressRule(r) {
					continue
				}
				flags := 0
				if at != nil {
					flags = int(netlink.FLAG_ONLINK)
					if err := h.NeighSet(rtnl.PermanentNeighbour(link.Attrs().Index, gw, at)); err != nil {
						return fmt.Errorf("set the neighbour entry of %s: %w", gw, err)
					}
				}
				def := &netlink.Route{
					Flags: flags, LinkIndex: link.Attrs().Index, Table: r.Table, Dst: rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(gw), 0)), Gw: gw.AsSlice(), Protocol: unix.RTPROT_BOOT,
				}
				if err := h.RouteReplace(def); err != nil {
					return fmt.Errorf("set the default route of table %d by %s: %w", r.Table, gw, err)
				}
			}
		}
		return nil
	})
}

// Priorities and tables of Coil's rules in clients.
const (
	ruleOwnWay    = 1000 // with a mark, which is the index of the pod's link; the table is the sum of both
	ruleLinkLocal = 1800
	ruleTo        = 1900
	ruleNetworks  = 2000 // and the two after it
	ruleDefault   = 2100

	tableTo      = 117
	tableDefault = 118
)

// isEgressRule reports whether Coil made a rule of a client. It gives its rules no protocol.
func isEgressRule(r netlink.Rule) bool {
	if r.Protocol != unix.RTPROT_UNSPEC {
		return false
	}
	to := r.Dst != nil && r.Table == unix.RT_TABLE_MAIN
	switch r.Priority {
	case ruleOwnWay:
		return r.Mark != 0 && r.Table == ruleOwnWay+int(r.Mark)
	case ruleLinkLocal, ruleNetworks, ruleNetworks + 1, ruleNetworks + 2:
		return to
	case ruleTo:
		return r.Table == tableTo
	case ruleDefault:
		return r.Table == tableDefault
	}
	return false
}

// removeEgressRules removes Coil's rules, those with the lowest numbers last: they exempt packets from the others. The
// table of replies goes with its rule.
func removeEgressRules(h *netlink.Handle) error {
	for _, family := range families {
		rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return h.RuleList(family) })
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for i := len(rules) - 1; i >= 0; i-- { // the kernel lists them in order
			r := rules[i]
			if !isEgressRule(r) {
				continue
			}
			r.Family = family
			if err := h.RuleDel(&r); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove the rule %d of table %d: %w", r.Priority, r.Table, err)
			}
			if r.Priority != ruleOwnWay {
				continue
			}
			routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
				return h.RouteListFiltered(family, &netlink.Route{Table: r.Table}, netlink.RT_FILTER_TABLE)
			})
			if err != nil {
				return fmt.Errorf("list the routes of table %d: %w", r.Table, err)
			}
			for _, route := range routes {
				if err := h.RouteDel(&route); err != nil && !rtnl.IsGone(err) {
					return fmt.Errorf("remove the route %s of table %d: %w", rtnl.RouteDst(route), r.Table, err)
				}
			}
		}
	}
	return nil
}

// removeEgressLinks removes Coil's tunnels, and their routes with them. The kernel's own fallback devices, which cannot be
// removed, get their names back.
func removeEgressLinks(h *netlink.Handle, links []netlink.Link) error {
	fallback := map[string]string{"coil_tunl": "tunl0", "coil_ip6tnl": "ip6tnl0"}
	for _, l := range links {
		name := l.Attrs().Name
		if as := fallback[name]; as != "" {
			if err := h.LinkSetName(l, as); err != nil {
				return fmt.Errorf("rename %s to %s: %w", name, as, err)
			}
			continue
		}
		if name != "coil_ipip4" && name != "coil_ipip6" && !strings.HasPrefix(name, "fou4_") && !strings.HasPrefix(name, "fou6_") {
			continue
		}
		if err := h.LinkDel(l); err != nil && !rtnl.IsNoLink(err) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

// coilPort is the UDP port of Coil's tunnels.
const coilPort = 5555

// removePorts removes Coil's FoU ports of families in which Berth has no tunnel.
func removePorts(h *netlink.Handle) error {
	for _, family := range families {
		if _, err := h.LinkByName(tunnel.LinkOf(family)); !rtnl.IsNoLink(err) {
			if err != nil {
				return fmt.Errorf("look for %s: %w", tunnel.LinkOf(family), err)
			}
			continue
		}
		ports, err := rtnl.Whole(func() ([]netlink.Fou, error) { return h.FouList(family) })
		if err != nil {
			return fmt.Errorf("list FoU ports: %w", err)
		}
		for _, p := range ports {
			if p.Family != family || p.Port != coilPort {
				continue
			}
			if err := h.FouDel(p); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove the FoU port %d: %w", p.Port, err)
			}
		}
	}
	return nil
}

// removeMangle removes Coil's rules of the nftables tables "mangle": the chains input and output of --enable-originating-only,
// and the checksums of iptables before version 2.5. Rules of other software in these tables stay.
func removeMangle(ns netns.NsHandle) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return fmt.Errorf("list nftables chains: %w", err)
		}
		if err := removeMangleOf(c, family, chains); err != nil {
			return err
		}
	}
	return nil
}

func removeMangleOf(c *nftables.Conn, family nftables.TableFamily, chains []*nftables.Chain) error {
	table := &nftables.Table{Family: family, Name: "mangle"}
	left, removed := 0, 0
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return fmt.Errorf("list the rules of chain %s: %w", chain.Name, err)
		}
		own := 0
		for _, r := range rules {
			if chain.Name == "input" || chain.Name == "output" || isChecksum(r) {
				own++
				if err := c.DelRule(r); err != nil {
					return fmt.Errorf("remove a rule of chain %s: %w", chain.Name, err)
				}
			}
		}
		removed += own
		if own > 0 && own == len(rules) {
			c.DelChain(chain)
			continue
		}
		left++
	}
	if removed == 0 {
		return nil
	}
	if left == 0 {
		c.DelTable(table) // with the set of links
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove Coil's chains of the nftables table mangle: %w", err)
	}
	return nil
}

// isChecksum reports whether a rule is that of iptables -j CHECKSUM.
func isChecksum(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		if t, ok := e.(*expr.Target); ok && t.Name == "CHECKSUM" {
			return true
		}
	}
	return false
}

// egressRemedy returns what makes a pod leave Coil's gateways.
func (p pod) egressRemedy() string {
	if p.chained() {
		return "delete it, since another network made its interface"
	}
	return "run berthd with --egress (egress.enabled of the chart), and wait until its EgressClient is ready"
}
