package kernelstate

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links writes links with their addresses and counters.
func Links(w io.Writer) error {
	links, err := dump(netlink.LinkList)
	for _, l := range links {
		if err := writeLink(w, l.Attrs(), l.Type()); err != nil {
			return err
		}
		addresses, addrErr := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		err = errors.Join(err, addrErr)
		for _, a := range addresses {
			line := words{"   ", a.IPNet.String()}
			line.add("peer", a.Peer)
			line.add("scope", netlink.Scope(a.Scope))
			line.add("flags", flags(a.Flags, addressFlags))
			line.add("label", a.Label)
			if err := line.line(w); err != nil {
				return err
			}
		}
	}
	return err
}

func writeLink(w io.Writer, a *netlink.LinkAttrs, kind string) error {
	line := words{fmt.Sprintf("%d:", a.Index), a.Name, "type", kind}
	line.add("mtu", a.MTU)
	line.add("state", a.OperState)
	line.add("flags", a.Flags)
	line.add("mac", a.HardwareAddr)
	line.add("parent", a.ParentIndex)
	line.add("master", a.MasterIndex)
	if a.NetNsID >= 0 && kind == "veth" {
		line = append(line, "peer-netns", fmt.Sprint(a.NetNsID))
	}
	line.add("alias", a.Alias)
	line.add("altnames", a.AltNames)
	line.add("bus", a.ParentDev)
	if s := a.Statistics; s != nil {
		line = append(line, fmt.Sprintf("rx %d packets %d bytes %d dropped %d errors; tx %d packets %d bytes %d dropped %d errors",
			s.RxPackets, s.RxBytes, s.RxDropped, s.RxErrors, s.TxPackets, s.TxBytes, s.TxDropped, s.TxErrors))
	}
	return line.line(w)
}

// Routes writes the routes of all tables.
func Routes(w io.Writer) (err error) {
	names := linkNames()
	for _, f := range families {
		routes, listErr := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f.family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		err = errors.Join(err, of(f.name, listErr))
		if _, err := fmt.Fprintf(w, "# %s: %d routes\n", f.name, len(routes)); err != nil {
			return err
		}
		for _, r := range routes {
			if err := writeRoute(w, r, names); err != nil {
				return err
			}
		}
	}
	return err
}

func writeRoute(w io.Writer, r netlink.Route, names map[int]string) error {
	var line words
	if kind := routeTypes[r.Type]; kind != "" {
		line = words{kind}
	}
	line = append(line, destination(r.Dst))
	line.add("via", r.Gw)
	line.add("via", r.Via)
	line.add("dev", names[r.LinkIndex])
	line = append(line, "table", fmt.Sprint(r.Table))
	line.add("proto", r.Protocol)
	line.add("scope", r.Scope)
	line.add("src", r.Src)
	line.add("metric", r.Priority)
	line.add("mtu", r.MTU)
	line.add("flags", r.ListFlags())
	line.add("encap", r.Encap)
	for _, hop := range r.MultiPath {
		line = append(line, "nexthop")
		line.add("via", hop.Gw)
		line.add("dev", names[hop.LinkIndex])
	}
	return line.line(w)
}

// destination is the destination of a route, which a default route lacks or has as all addresses.
func destination(dst *net.IPNet) string {
	if dst == nil {
		return "default"
	}
	if ones, _ := dst.Mask.Size(); ones == 0 {
		return "default"
	}
	return dst.String()
}

var routeTypes = map[int]string{
	unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast",
	unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw", unix.RTN_NAT: "nat",
}

// Rules writes the policy rules.
func Rules(w io.Writer) (err error) {
	for _, f := range families {
		rules, listErr := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(f.family) })
		err = errors.Join(err, of(f.name, listErr))
		if _, err := fmt.Fprintf(w, "# %s\n", f.name); err != nil {
			return err
		}
		for _, r := range rules {
			if err := writeRule(w, r); err != nil {
				return err
			}
		}
	}
	return err
}

func writeRule(w io.Writer, r netlink.Rule) error {
	line := words{fmt.Sprintf("%d:", max(0, r.Priority))}
	if r.Invert {
		line = append(line, "not")
	}
	line = append(line, "from", orAll(r.Src))
	if r.Dst != nil {
		line = append(line, "to", r.Dst.String())
	}
	if r.Mark != 0 || r.Mask != nil {
		mark := fmt.Sprintf("%#x", r.Mark)
		if r.Mask != nil {
			mark += fmt.Sprintf("/%#x", *r.Mask)
		}
		line = append(line, "fwmark", mark)
	}
	line.add("iif", r.IifName)
	line.add("oif", r.OifName)
	line.add("tos", r.Tos)
	line.add("ipproto", r.IPProto)
	if r.Goto >= 0 {
		line = append(line, "goto", fmt.Sprint(r.Goto))
	}
	line.add("lookup", r.Table)
	line.add("proto", r.Protocol)
	line.add("type", routeTypes[int(r.Type)])
	return line.line(w)
}

func orAll(n *net.IPNet) string {
	if n == nil {
		return "all"
	}
	return n.String()
}

// Neighbours writes neighbours, including proxies.
func Neighbours(w io.Writer) (err error) {
	names := linkNames()
	for _, f := range families {
		neighbours, listErr := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, f.family) })
		proxies, proxyErr := dump(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(0, f.family) })
		err = errors.Join(err, of(f.name, errors.Join(listErr, proxyErr)))
		if _, err := fmt.Fprintf(w, "# %s\n", f.name); err != nil {
			return err
		}
		for _, n := range append(neighbours, proxies...) {
			line := words{n.IP.String()}
			line.add("dev", names[n.LinkIndex])
			line.add("lladdr", n.HardwareAddr)
			line.add("state", flags(n.State, neighbourStates))
			line.add("flags", flags(n.Flags, neighbourFlags))
			if err := line.line(w); err != nil {
				return err
			}
		}
	}
	return err
}

// linkNames returns the names of links by index; empty if links cannot be listed.
func linkNames() map[int]string {
	names := map[int]string{}
	links, _ := dump(netlink.LinkList)
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names
}

// of wraps an error. It returns nil if the kernel lacks the family.
func of(what string, err error) error {
	if err == nil || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// bit is a bit and its name.
type bit struct {
	value int
	name  string
}

var (
	addressFlags = []bit{
		{unix.IFA_F_SECONDARY, "secondary"}, {unix.IFA_F_NODAD, "nodad"}, {unix.IFA_F_DADFAILED, "dadfailed"}, {unix.IFA_F_DEPRECATED, "deprecated"},
		{unix.IFA_F_TENTATIVE, "tentative"}, {unix.IFA_F_PERMANENT, "permanent"}, {unix.IFA_F_NOPREFIXROUTE, "noprefixroute"},
	}
	neighbourStates = []bit{
		{unix.NUD_INCOMPLETE, "incomplete"}, {unix.NUD_REACHABLE, "reachable"}, {unix.NUD_STALE, "stale"}, {unix.NUD_DELAY, "delay"},
		{unix.NUD_PROBE, "probe"}, {unix.NUD_FAILED, "failed"}, {unix.NUD_NOARP, "noarp"}, {unix.NUD_PERMANENT, "permanent"},
	}
	neighbourFlags = []bit{{unix.NTF_PROXY, "proxy"}, {unix.NTF_ROUTER, "router"}, {unix.NTF_EXT_LEARNED, "extern_learn"}}
)

func flags(set int, bits []bit) (out []string) {
	for _, b := range bits {
		if set&b.value != 0 {
			out = append(out, b.name)
			set &^= b.value
		}
	}
	if set != 0 {
		out = append(out, fmt.Sprintf("%#x", set))
	}
	return out
}
