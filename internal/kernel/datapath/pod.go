package datapath

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Pod is the desired state of one attachment.
type Pod struct {
	Netns      string     // path of the pod's network namespace
	NetnsID    NetnsID    // the namespace expected at Netns; zero: any
	IfName     string     // in the pod, such as "eth0"
	HostIfName string     // on the node; see HostLinkName
	MTU        int        // bytes; 0: the node's
	IPv4, IPv6 netip.Addr // at least one is set
	// HostMAC and PodMAC are the addresses of a new link. If nil they are derived from HostIfName.
	HostMAC, PodMAC net.HardwareAddr
	// Several reports that the pod has interfaces of other networks. Packets from this interface's addresses must not
	// leave by those.
	Several bool
	// Yield4 and Yield6 report that another interface has the pod's default route of the family.
	Yield4, Yield6 bool
	// FormerLink is the name of the pod's link on the node if another network made it. AddPod renames it.
	FormerLink string
}

// yields reports whether another interface has the default route of an address's family.
func (p Pod) yields(addr netip.Addr) bool { return addr.Is4() && p.Yield4 || !addr.Is4() && p.Yield6 }

// hostLink is the desired state of the link's end on the node.
func (p Pod) hostLink() rtnl.Link { return rtnl.Link{Name: p.HostIfName, MAC: p.HostMAC, MTU: p.MTU} }

// PodLinks describes the two ends of a pod link as they are in the kernel.
type PodLinks struct {
	HostMAC, PodMAC     net.HardwareAddr
	HostIndex, PodIndex int
	MTU                 int
}

// HostLinkName is the name of an attachment's link on the node: LinkPrefix and 60 bits of a hash of its key. It has
// 15 characters, the most that Linux allows.
func HostLinkName(network, containerID, ifName string) string {
	return LinkPrefix + nameEncoding.EncodeToString(digest("link", network, containerID, ifName))[:linkHashLen]
}

const linkHashLen = 12

var nameEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// IsHostLinkName reports whether a name is one that HostLinkName may return.
func IsHostLinkName(name string) bool {
	hash, ok := strings.CutPrefix(name, LinkPrefix)
	return ok && len(hash) == linkHashLen && strings.Trim(hash, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Gateways of pods. No machine has these addresses: a permanent neighbour entry leads to the host end of the pod's
// link (proposal for the Amazon VPC CNI, for IPv4).
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Addrs returns the addresses that are set, IPv4 first.
func (p Pod) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, a := range [...]netip.Addr{p.IPv4, p.IPv6} {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// Validate returns an error about the first invalid field.
func (p Pod) Validate() error {
	switch {
	case p.Netns == "":
		return fmt.Errorf("Netns: want the path of the pod's network namespace")
	case !rtnl.ValidName(p.IfName):
		return fmt.Errorf("IfName %q: want 1 to 15 characters without '/', ':' and spaces", p.IfName)
	case !IsHostLinkName(p.HostIfName):
		return fmt.Errorf("HostIfName %q: want a name that HostLinkName makes", p.HostIfName)
	case p.FormerLink != "" && (!rtnl.ValidName(p.FormerLink) || IsHostLinkName(p.FormerLink)):
		return fmt.Errorf("FormerLink %q: want the name of a link of another network", p.FormerLink)
	case p.IPv4.IsValid() && !p.IPv4.Is4():
		return fmt.Errorf("IPv4 %s: not an IPv4 address", p.IPv4)
	case p.IPv6.IsValid() && !rtnl.IsIPv6(p.IPv6):
		return fmt.Errorf("IPv6 %s: not an IPv6 address", p.IPv6)
	case !p.IPv4.IsValid() && !p.IPv6.IsValid():
		return fmt.Errorf("IPv4, IPv6: want at least one address")
	case p.MTU != 0 && (p.MTU < minMTU || p.MTU > maxMTU):
		return fmt.Errorf("MTU %d: want 0 or %d to %d", p.MTU, minMTU, maxMTU)
	}
	return nil
}

// complete sets fields that may be left out.
func (p Pod) complete(mtu int) Pod {
	if p.HostMAC == nil {
		p.HostMAC = deriveMAC("host", p.HostIfName)
	}
	if p.PodMAC == nil {
		p.PodMAC = deriveMAC("pod", p.HostIfName)
	}
	if p.MTU == 0 {
		p.MTU = mtu
	}
	if p.IPv6.IsValid() && p.MTU < 1280 {
		p.MTU = 1280 // RFC 8200 section 5: the kernel refuses IPv6 below
	}
	return p
}

// deriveMAC makes a locally administered unicast address (IEEE 802, the second
// lowest bit of the first octet).
func deriveMAC(parts ...string) net.HardwareAddr {
	mac := net.HardwareAddr(digest(parts...)[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

func digest(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:]
}
