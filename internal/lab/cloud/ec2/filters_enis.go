package ec2

import (
	"net/netip"
	"strconv"

	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// eniFilters are the filters of DescribeNetworkInterfaces.
func (n names) eniFilters() filterTable[vpc.ENI] {
	t := filterTable[vpc.ENI]{
		"addresses.primary": func(e *vpc.ENI) []string {
			return each(e.IPv4(), func(a netip.Addr) string { return strconv.FormatBool(a == e.Primary) })
		},
		"addresses.private-ip-address": func(e *vpc.ENI) []string { return each(e.IPv4(), netip.Addr.String) },
		"availability-zone":            text(func(e *vpc.ENI) string { return e.Zone }),
		"availability-zone-id":         text(func(e *vpc.ENI) string { return n.zones[e.Zone] }),
		"description":                  text(func(e *vpc.ENI) string { return e.Description }),
		"group-id":                     func(e *vpc.ENI) []string { return e.Groups },
		"group-name":                   func(e *vpc.ENI) []string { return each(e.Groups, func(id string) string { return n.groups[id] }) },
		"interface-type":               text(func(e *vpc.ENI) string { return e.Type }),
		"ipv6-addresses.ipv6-address":  func(e *vpc.ENI) []string { return each(e.IPv6, netip.Addr.String) },
		"mac-address":                  text(func(e *vpc.ENI) string { return e.MAC.String() }),
		"network-interface-id":         text(func(e *vpc.ENI) string { return e.ID }),
		"operator.managed":             same[vpc.ENI]("false"),
		"owner-id":                     same[vpc.ENI](n.account),
		"private-dns-name":             text(func(e *vpc.ENI) string { return n.dns(e.Primary) }),
		"requester-id":                 text(func(e *vpc.ENI) string { return e.RequesterID }),
		"requester-managed":            same[vpc.ENI]("false"),
		"source-dest-check":            flag(func(e *vpc.ENI) bool { return e.SourceDestCheck }),
		"status":                       text(func(e *vpc.ENI) string { return e.Status() }),
		"subnet-id":                    text(func(e *vpc.ENI) string { return e.SubnetID }),
		"vpc-id":                       text(func(e *vpc.ENI) string { return e.VPCID }),

		"attachment.attach-time":           attachment(func(a *vpc.Attachment) string { return stamp(a.Time) }),
		"attachment.attachment-id":         attachment(func(a *vpc.Attachment) string { return a.ID }),
		"attachment.delete-on-termination": attachment(func(a *vpc.Attachment) string { return strconv.FormatBool(a.DeleteOnTermination) }),
		"attachment.device-index":          attachment(func(a *vpc.Attachment) string { return strconv.Itoa(a.DeviceIndex) }),
		"attachment.instance-id":           attachment(func(a *vpc.Attachment) string { return a.InstanceID }),
		"attachment.instance-owner-id":     attachment(func(*vpc.Attachment) string { return n.account }),
		"attachment.status":                attachment(func(a *vpc.Attachment) string { return string(a.Status) }),
	}
	t.alias("private-ip-address", "addresses.private-ip-address")
	return t.absent(
		"addresses.association.owner-id", "addresses.association.public-ip", "association.allocation-id", "association.association-id",
		"association.ip-owner-id", "association.public-dns-name", "association.public-ip", "operator.principal",
	)
}

// attachment is a value of an ENI's attachment, none of one that is available.
func attachment(f func(*vpc.Attachment) string) values[vpc.ENI] {
	return text(func(e *vpc.ENI) string {
		if e.Attachment == nil {
			return ""
		}
		return f(e.Attachment)
	})
}

// instanceENIFilters are the filters of DescribeInstances about the ENIs of an
// instance, without the prefix "network-interface.".
func (n names) instanceENIFilters() filterTable[vpc.ENI] {
	t := n.eniFilters()
	t["addresses.private-dns-name"] = func(e *vpc.ENI) []string { return each(e.IPv4(), n.dns) }
	t["attachment.network-card-index"] = attachment(func(a *vpc.Attachment) string { return strconv.Itoa(a.NetworkCard) })
	t["ipv4-prefixes.ipv4-prefix"] = func(e *vpc.ENI) []string { return each(e.Prefixes, netip.Prefix.String) }
	t["ipv6-prefixes.ipv6-prefix"] = func(e *vpc.ENI) []string { return each(e.IPv6Prefixes, netip.Prefix.String) }
	t["ipv6-addresses.is-primary-ipv6"] = func(e *vpc.ENI) []string { return each(e.IPv6, func(netip.Addr) string { return "false" }) }
	t["deny-all-igw-traffic"], t["ipv6-native"] = same[vpc.ENI]("false"), same[vpc.ENI]("false")
	t.alias("ipv6-address", "ipv6-addresses.ipv6-address")
	return t.absent(
		"addresses.association.allocation-id", "addresses.association.association-id", "addresses.association.carrier-ip",
		"addresses.association.customer-owned-ip", "addresses.association.ip-owner-id", "addresses.association.public-dns-name",
		"association.carrier-ip", "association.customer-owned-ip", "outpost-arn", "public-dns-name",
	)
}
