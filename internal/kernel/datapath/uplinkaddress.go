package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The address of a secondary ENI's link.
//
// As a rule it is the ENI's own: ARP requests for the router come from it, and
// what kube-proxy masquerades on its way out there, which with any other source
// a VPC drops.
//
// When the ENI's own address is among those for pods, the link must not have
// it: the rule of priority 0 would take a pod's packets for the node's. But the
// link must not be without any address either: the kernel then drops whatever
// comes in by it unless rp_filter is off, which loose is not, and forgets the
// link's routes (Linux: __fib_validate_source, fib_disable_ip). So it gets a
// stand-in. ARP requests for the router then come from the primary address; a VPC
// answers whoever asks.

// standIn is the address that pods have for the node anyhow. With host scope
// the kernel never takes it for a source.
var standIn = gateway4

// ownForPods tells whether pods may have the ENI's own address.
func (e Uplink) ownForPods() bool {
	return e.PrimaryIPv4.IsValid() && slices.Contains(e.Addresses, e.PrimaryIPv4)
}

// linkAddress is what a secondary ENI's link should have; zero: nothing.
func (e Uplink) linkAddress() netip.Addr {
	if e.ownForPods() {
		return standIn
	}
	return e.PrimaryIPv4
}

// setUplinkAddress gives the link its address, and takes from it what pods may
// have, whoever put it there. It adds first: with its last address a link loses
// its routes.
func (k *kernel) setUplinkAddress(uplink Uplink, link netlink.Link) (changed []string, err error) {
	want, name := uplink.linkAddress(), link.Attrs().Name
	if !want.IsValid() {
		return nil, nil
	}
	addr := &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(want)), Flags: unix.IFA_F_NOPREFIXROUTE}
	if want == standIn {
		addr.Scope = int(netlink.SCOPE_HOST)
	}
	switch err := k.slow.AddrAdd(link, addr); {
	case err == nil:
		changed = append(changed, fmt.Sprintf("address %s of %s", want, name))
	case !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("add address %s to %s: %w", want, name, err)
	}
	have, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.slow.AddrList(link, unix.AF_INET) })
	if err != nil {
		return changed, fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		stoodIn := ip == standIn && a.Scope == int(netlink.SCOPE_HOST)
		if ip == want || ip != uplink.PrimaryIPv4 && !stoodIn {
			continue
		}
		if err := k.slow.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove address %s from %s: %w", a.IPNet, name, err)
		}
		changed = append(changed, fmt.Sprintf("removed address %s of %s", a.IPNet, name))
	}
	return changed, nil
}
