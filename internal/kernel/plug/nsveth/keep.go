package nsveth

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// A link loses its addresses and routes when it is moved. If the provider does not report them, the alias keeps those
// that the agent set, so that an interrupted move loses nothing: "MARK MTU ADDRESS,ADDRESS... GATEWAY,GATEWAY...".

// saveSettings returns the alias of a link that is about to be moved.
func saveSettings(w plug.Want, l netlink.Link, vpc *podif.Namespace) (string, error) {
	if _, ok := plug.ParseMark(l.Attrs().Alias); ok { // an interrupted move
		return l.Attrs().Alias, nil
	}
	if len(w.Interface.Addresses) > 0 || w.Interface.Bare {
		return w.Mark(), nil
	}
	addrs, err := rtnl.Whole(func() ([]netlink.Addr, error) { return vpc.NL.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return "", fmt.Errorf("list addresses of %s in %s: %w", l.Attrs().Name, vpc.Path, err)
	}
	var own, via []string
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && a.Scope == unix.RT_SCOPE_UNIVERSE {
			own = append(own, netip.PrefixFrom(ip.Unmap(), bits).String())
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) { return vpc.NL.RouteList(l, family) })
		if err != nil {
			return "", fmt.Errorf("list routes of %s in %s: %w", l.Attrs().Name, vpc.Path, err)
		}
		i := slices.IndexFunc(routes, func(r netlink.Route) bool { return rtnl.RouteDst(r).Bits() == 0 && len(r.Gw) > 0 })
		if i >= 0 {
			via = append(via, routes[i].Gw.String())
		}
	}
	mark := fmt.Sprintf("%s %d %s %s", w.Mark(), l.Attrs().MTU, strings.Join(own, ","), strings.Join(via, ","))
	const longest = 255 // IFALIASZ of linux/if.h
	if len(mark) > longest {
		return "", fmt.Errorf("the alias of %s in %s cannot hold that many addresses: %v; the provider must report them", l.Attrs().Name, vpc.Path, own)
	}
	return mark, nil
}

// restoreSettings fills in the addresses, gateways and MTU that a link had before it was moved.
func restoreSettings(mark string, i plug.Interface) (plug.Interface, error) {
	parts := strings.Split(mark, " ")
	if len(i.Addresses) > 0 || i.Bare || len(parts) != 8 {
		return i, nil
	}
	mtu, err := strconv.Atoi(parts[5])
	if err != nil {
		return i, fmt.Errorf("parse the alias %q: %w", mark, err)
	}
	if i.MTU == 0 {
		i.MTU = mtu
	}
	for a := range strings.SplitSeq(parts[6], ",") {
		if p, err := netip.ParsePrefix(a); err == nil {
			i.Addresses = append(i.Addresses, p)
		}
	}
	if len(i.Gateways) > 0 {
		return i, i.Validate()
	}
	for g := range strings.SplitSeq(parts[7], ",") {
		if a, err := netip.ParseAddr(g); err == nil {
			i.Gateways = append(i.Gateways, a)
		}
	}
	return i, i.Validate()
}
