package fabric

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// direction of a security group rule from the ENI's point of view.
type direction int

const (
	ingress direction = iota // peer is the source; a match accepts
	egress                   // peer is the destination; a match continues with the ingress rules
)

func (d direction) verdict() expr.VerdictKind {
	if d == egress {
		return expr.VerdictReturn
	}
	return expr.VerdictAccept
}

// addGroupRule adds a security group's rule: one nftables rule for each block and each group in it.
func (r *ruleset) addGroupRule(c *nftables.Conn, chain *nftables.Chain, rule vpc.Rule, d direction) error {
	what, err := protocol(rule)
	if err != nil {
		return err
	}
	for _, cidr := range rule.CIDRs {
		r.addRule(c, chain, peerIn(cidr, d), what, verdict(d.verdict()))
	}
	for _, id := range rule.Groups {
		set, err := r.group(c, id)
		if err != nil {
			return err
		}
		key := expr.MetaKeyIIFNAME
		if d == egress {
			key = expr.MetaKeyOIFNAME
		}
		r.addRule(c, chain, &expr.Meta{Key: key, Register: 1}, in(set), what, verdict(d.verdict()))
	}
	return nil
}

func peerIn(cidr netip.Prefix, d direction) []expr.Any {
	off := map[direction][2]uint32{ingress: {12, 8}, egress: {16, 24}}[d] // offset of the address in the IPv4 and IPv6 headers
	if cidr.Addr().Is4() {
		return append(ipv4(), prefixMatch(off[0], cidr)...)
	}
	return append(ipv6(), prefixMatch(off[1], cidr)...)
}

// protocol matches a rule's protocol and ports (EC2 API, IpPermission).
func protocol(rule vpc.Rule) ([]expr.Any, error) {
	n, err := protocolNumber(rule.Protocol)
	if err != nil || n < 0 {
		return nil, err
	}
	out := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(n)}},
	}
	switch n {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		if rule.FromPort <= 0 && (rule.ToPort < 0 || rule.ToPort >= 65535) {
			return out, nil
		}
		return append(out,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: be16(max(rule.FromPort, 0))},
			&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: be16(rule.ToPort)},
		), nil
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		for i, v := range []int{rule.FromPort, rule.ToPort} { // type, code
			if v >= 0 {
				out = append(out,
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: uint32(i), Len: 1},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(v)}})
			}
		}
	}
	return out, nil
}

// protocolNumber returns the number of a protocol, or -1 for any.
func protocolNumber(p string) (int, error) {
	switch p {
	case "-1", "":
		return -1, nil
	case "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	case "icmp":
		return unix.IPPROTO_ICMP, nil
	case "icmpv6":
		return unix.IPPROTO_ICMPV6, nil
	}
	n, err := strconv.ParseUint(p, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q: want -1, tcp, udp, icmp, icmpv6 or a number below 256", p)
	}
	return int(n), nil
}
