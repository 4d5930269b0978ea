package datapath

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// fromPod: iifname "bth*".
func fromPod() nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFNAME), nft.Is([]byte(LinkPrefix)...))
}

// fromGroup: iifgroup & mask == GROUP.
func fromGroup(group, mask uint32) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFGROUP), nft.Mask(nft.Word(mask)...), nft.Is(nft.Word(group)...))
}

// notFromPod: iifname != "bth*".
func notFromPod() nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFNAME), nft.IsNot([]byte(LinkPrefix)...))
}

// notToPod: oifname != "bth*".
func notToPod() nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyOIFNAME), nft.IsNot([]byte(LinkPrefix)...))
}

// fromLink: iifname NAME.
func fromLink(name string) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFNAME), nft.Is(nft.LinkName(name)...))
}

// loopback4 is the loopback network of IPv4. Of IPv6 the kernel itself drops what comes by a
// link for ::1.
var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// LinkLocalNet are the link-local addresses of IPv6 (RFC 4291, section 2.4).
var LinkLocalNet = netip.MustParsePrefix("fe80::/10")

// isUntranslatable: ct state invalid,untracked. NAT looks at neither. Whatever
// else there is of rules, the kernel tracks no neighbour or listener discovery
// (ICMPv6 types 130 to 133, 135, 136 and 143), wherever it is addressed to.
func isUntranslatable() nft.Exprs {
	return nft.CtState(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)
}

// sourceNotBehindLink: fib saddr . mark . iif oif missing. It is strict reverse path
// filtering (RFC 3704), alike for both families and without a sysctl a link. Pods of branches alone
// have a mark by then, which leads to the table that has their addresses.
func sourceNotBehindLink() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagSADDR: true, FlagMARK: true, FlagIIF: true, ResultOIF: true}}, nft.Is(nft.Word(0)...))
}

// notToNode: fib daddr . iif type != local.
func notToNode() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true}}, nft.IsNot(nft.Word(unix.RTN_LOCAL)...))
}

// notFromNode: fib saddr type != local. Of what the node sends it is what IPVS passes on.
func notFromNode() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagSADDR: true, ResultADDRTYPE: true}}, nft.IsNot(nft.Word(unix.RTN_LOCAL)...))
}

// icmpv6: icmpv6 type.
func icmpv6(kind byte) nft.Exprs {
	return nft.Join(nft.Family(unix.AF_INET6), nft.ICMPv6Type(), nft.Is(kind))
}

// solicitation: icmpv6 type 133-135: a router or a neighbour solicitation, and
// the router advertisement between them.
func solicitation() nft.Exprs { return nft.ICMPv6Between(routerSolicitation, NeighbourSolicitation) }

// neighbourDiscovery: icmpv6 type 133-136.
func neighbourDiscovery() nft.Exprs {
	return nft.ICMPv6Between(routerSolicitation, NeighbourAdvertisement)
}

// Types of neighbour discovery (RFC 4861 section 4).
const (
	routerSolicitation     byte = 133
	routerAdvertisement    byte = 134
	NeighbourSolicitation  byte = 135
	NeighbourAdvertisement byte = 136
	redirect               byte = 137
)
