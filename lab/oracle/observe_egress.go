package oracle

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// egressState is the state of egress in a pod's network namespace, read without Berth's own code.
type egressState struct {
	mtu    int               // of the pod's own link
	links  map[string]string // tunnels by name, formatted by tunnelText
	ports  []string          // FoU ports: "udp 5555 of IPv4 has protocol 4"
	routes []egressRoute     // of all tables except main, local and default
	rules  []string          // policy routing rules except the kernel's own, formatted by ruleText
	loose  bool              // whether reverse path filtering of the IPv4 tunnel is loose
	tables []string          // of nftables
	sets   map[string][]nftables.SetElement
	leads  map[string][]string // jump and goto targets of all rules, by chain
}

// egressRoute is a route in a table other than main, local and default.
type egressRoute struct {
	table, metric int
	dst           netip.Prefix
	via, src      netip.Addr // zero: none
	link          string
	unreachable   bool
}

func (r egressRoute) String() string {
	if r.unreachable {
		return fmt.Sprintf("route unreachable %s table %d", r.dst, r.table)
	}
	return fmt.Sprintf("route %s via %s dev %s table %d", r.dst, r.via, r.link, r.table)
}

// tunnelText formats a tunnel device.
func tunnelText(kind string, local netip.Addr, source uint16, port uint16, mtu int, up bool) string {
	return fmt.Sprintf("%s local %s remote any FoU from port %d to %d mtu %d up %t", kind, local, source, port, mtu, up)
}

// ruleText formats a policy routing rule.
func ruleText(priority int, what string, table int) string {
	return fmt.Sprintf("%d %s table %d", priority, what, table)
}

func markText(mark, mask uint32) string { return fmt.Sprintf("mark %#x/%#x", mark, mask) }

// observeEgress reads the namespace at path.
func observeEgress(path string) (egressState, error) {
	s := egressState{links: map[string]string{}, sets: map[string][]nftables.SetElement{}, leads: map[string][]string{}}
	h, err := netns.GetFromPath(path)
	if err != nil {
		return s, fmt.Errorf("open the namespace: %w", err)
	}
	defer h.Close()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE, unix.NETLINK_GENERIC)
	if err != nil {
		return s, fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	if err := s.observeLinks(nl); err != nil {
		return s, err
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := s.observeFamily(nl, family); err != nil {
			return s, err
		}
	}
	if err := s.observeFilter(h); err != nil {
		return s, fmt.Errorf("read nftables: %w", err)
	}
	return s, ns.Do(path, func() error {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + tunnel.Link4 + "/rp_filter")
		s.loose = strings.TrimSpace(string(text)) == "2"
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
}

func (s *egressState) observeLinks(nl *netlink.Handle) error {
	links, err := again(nl.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Name == firstInterface {
			s.mtu = a.MTU
		}
		if !strings.HasPrefix(a.Name, "berth-egress") {
			continue
		}
		text := "a link of type " + l.Type()
		switch t := l.(type) {
		case *netlink.Iptun:
			if t.EncapType == 1 && isAny(t.Remote) {
				text = tunnelText("ipip", addrOf(t.Local), t.EncapSport, t.EncapDport, a.MTU, a.Flags&net.FlagUp != 0)
			}
		case *netlink.Ip6tnl:
			if t.EncapType == 1 && isAny(t.Remote) {
				text = tunnelText("ip6tnl", addrOf(t.Local), t.EncapSport, t.EncapDport, a.MTU, a.Flags&net.FlagUp != 0)
			}
		}
		s.links[a.Name] = text
	}
	return nil
}

func isAny(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n == nil {
		if family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), ones)
}

func (s *egressState) observeFamily(nl *netlink.Handle, family int) error {
	ports, err := again(func() ([]netlink.Fou, error) { return nl.FouList(family) })
	if err != nil {
		return fmt.Errorf("list FoU ports: %w", err)
	}
	for _, p := range ports {
		if p.Family == family {
			s.ports = append(s.ports, portText(p.Port, family == unix.AF_INET6, p.Protocol))
		}
	}
	names := map[int]string{}
	links, err := again(nl.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	routes, err := again(func() ([]netlink.Route, error) {
		return nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Table == unix.RT_TABLE_MAIN || r.Table == unix.RT_TABLE_LOCAL || r.Table == unix.RT_TABLE_DEFAULT {
			continue
		}
		e := egressRoute{table: r.Table, metric: r.Priority, dst: prefixOf(r.Dst, family), unreachable: r.Type == unix.RTN_UNREACHABLE}
		if !e.unreachable {
			e.via, e.src, e.link = addrOf(r.Gw), addrOf(r.Src), names[r.LinkIndex]
		}
		s.routes = append(s.routes, e)
	}
	rules, err := again(func() ([]netlink.Rule, error) { return nl.RuleList(family) })
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if r.Priority <= 0 || r.Priority >= kernelRules {
			continue
		}
		s.rules = append(s.rules, ruleText(r.Priority, selection(r, family), r.Table))
	}
	return nil
}

// kernelRules is the first priority of the kernel's own rules for the tables main and default.
const kernelRules = 32766

func portText(port int, six bool, protocol int) string {
	family := 4
	if six {
		family = 6
	}
	return fmt.Sprintf("udp %d of IPv%d has protocol %d", port, family, protocol)
}

// selection formats the selector of a rule.
func selection(r netlink.Rule, family int) string {
	words := []string{"IPv4"}
	if family == unix.AF_INET6 {
		words[0] = "IPv6"
	}
	if r.Src != nil {
		words = append(words, "from "+prefixOf(r.Src, family).String())
	}
	if r.Dst != nil {
		words = append(words, "to "+prefixOf(r.Dst, family).String())
	}
	if r.IifName != "" {
		words = append(words, fmt.Sprintf("in %s not %t", r.IifName, r.Invert))
	}
	if r.OifName != "" {
		words = append(words, "out "+r.OifName)
	}
	if r.Mark != 0 {
		mask := uint32(0xffffffff)
		if r.Mask != nil {
			mask = *r.Mask
		}
		words = append(words, markText(r.Mark, mask))
	}
	return strings.Join(words, " ")
}

func (s *egressState) observeFilter(h netns.NsHandle) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(h)))
	if err != nil {
		return err
	}
	tables, err := c.ListTables()
	if err != nil {
		return err
	}
	for _, t := range tables {
		s.tables = append(s.tables, t.Name)
		if t.Name != tunnel.Table {
			continue
		}
		sets, err := c.GetSets(t)
		if err != nil {
			return fmt.Errorf("sets: %w", err)
		}
		for _, set := range sets {
			if set.Anonymous {
				continue
			}
			if s.sets[set.Name], err = c.GetSetElements(set); err != nil {
				return fmt.Errorf("set %s: %w", set.Name, err)
			}
		}
		chains, err := c.ListChainsOfTableFamily(t.Family)
		if err != nil {
			return fmt.Errorf("chains: %w", err)
		}
		for _, chain := range chains {
			if chain.Table.Name != t.Name {
				continue
			}
			rules, err := c.GetRules(t, chain)
			if err != nil {
				return fmt.Errorf("chain %s: %w", chain.Name, err)
			}
			s.leads[chain.Name] = leads(rules)
		}
	}
	slices.Sort(s.tables)
	return nil
}

// leads returns the jump and goto targets of all rules.
func leads(rules []*nftables.Rule) (to []string) {
	for _, r := range rules {
		for _, e := range r.Exprs {
			if v, ok := e.(*expr.Verdict); ok && v.Chain != "" {
				to = append(to, v.Chain)
			}
		}
	}
	return to
}

// addresses returns the keys of an nftables set.
func (s egressState) addresses(set string) (out []netip.Addr) {
	for _, e := range s.sets[set] {
		if a, ok := netip.AddrFromSlice(e.Key); ok && !e.IntervalEnd {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// verdictChain returns the chain to which an element of a verdict map leads. It decodes the raw value, which the
// nftables library does not decode (NFTA_VERDICT_CHAIN, linux/netfilter/nf_tables.h). It returns "" for other values.
func verdictChain(value []byte) (chain string) {
	ad, err := mdnetlink.NewAttributeDecoder(value)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CHAIN {
			chain = ad.String()
		}
	}
	return chain
}
