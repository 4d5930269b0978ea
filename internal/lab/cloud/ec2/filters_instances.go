package ec2

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/cloud/limits"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// instanceFilters finds the filters of DescribeInstances. ENIs lists an
// instance's, v1 tells whether metadata is answered without a token.
func (n names) instanceFilters(enis func(instanceID string) []*vpc.ENI, v1 bool) attributes[vpc.Instance] {
	t := n.instanceTable(v1)
	for name, v := range n.primaryFilters(enis) {
		t[name] = v
	}
	plugged := n.instanceENIFilters().tagged(func(e *vpc.ENI) vpc.Tags { return e.Tags })
	tagged := t.tagged(func(i *vpc.Instance) vpc.Tags { return i.Tags })
	return func(name string) (values[vpc.Instance], bool) {
		name, ofENI := strings.CutPrefix(name, "network-interface.")
		if !ofENI {
			return tagged(name)
		}
		v, ok := plugged(name)
		if !ok || strings.HasPrefix(name, "tag:") {
			return nil, false
		}
		return func(i *vpc.Instance) (out []string) {
			for _, e := range enis(i.ID) {
				out = append(out, v(e)...)
			}
			return out
		}, true
	}
}

// instanceTable are the filters about an instance itself.
func (n names) instanceTable(v1 bool) filterTable[vpc.Instance] {
	tokens := "required"
	if v1 {
		tokens = "optional"
	}
	t := filterTable[vpc.Instance]{
		"architecture":             same[vpc.Instance](architecture),
		"availability-zone":        text(func(i *vpc.Instance) string { return i.Zone }),
		"availability-zone-id":     text(func(i *vpc.Instance) string { return n.zones[i.Zone] }),
		"client-token":             text(func(i *vpc.Instance) string { return i.ClientToken }),
		"ebs-optimized":            same[vpc.Instance]("false"),
		"hypervisor":               text(func(i *vpc.Instance) string { return hypervisor(i.Type) }),
		"iam-instance-profile.arn": text(func(i *vpc.Instance) string { return n.profile(i.Role).ARN }),
		"iam-instance-profile.id":  text(func(i *vpc.Instance) string { return n.profile(i.Role).ID }),
		"image-id":                 text(func(i *vpc.Instance) string { return i.ImageID }),
		"instance-id":              text(func(i *vpc.Instance) string { return i.ID }),
		"instance-state-code":      number(func(i *vpc.Instance) int { return stateCodes[i.State] }),
		"instance-state-name":      text(func(i *vpc.Instance) string { return string(i.State) }),
		"instance-type":            text(func(i *vpc.Instance) string { return i.Type }),
		"launch-index":             number(func(i *vpc.Instance) int { return i.LaunchIndex }),
		"launch-time":              text(func(i *vpc.Instance) string { return stamp(i.Launched) }),
		"operator.managed":         same[vpc.Instance]("false"),
		"owner-id":                 same[vpc.Instance](n.account),
		"reservation-id":           text(func(i *vpc.Instance) string { return i.ReservationID }),
		"subnet-id":                text(func(i *vpc.Instance) string { return i.SubnetID }),
		"tenancy":                  same[vpc.Instance]("default"),
		"vpc-id":                   text(func(i *vpc.Instance) string { return i.VPCID }),

		"metadata-options.http-endpoint": same[vpc.Instance]("enabled"),
		"metadata-options.http-tokens":   same[vpc.Instance](tokens),
	}
	return t.absent(
		"affinity", "block-device-mapping.attach-time", "block-device-mapping.delete-on-termination", "block-device-mapping.device-name",
		"block-device-mapping.status", "block-device-mapping.volume-id", "capacity-reservation-id", "dns-name", "host-id",
		"instance-lifecycle", "ip-address", "kernel-id", "key-name", "operator.principal", "outpost-arn", "placement-group-name",
		"placement-partition-number", "platform", "product-code", "product-code.type", "ramdisk-id", "reason", "requester-id",
		"spot-instance-request-id", "state-reason-code", "state-reason-message",
	)
}

// primaryFilters are those about an instance's primary ENI, and its IPv6
// addresses. Of the private addresses EC2 has them see the primary one only.
func (n names) primaryFilters(enis func(instanceID string) []*vpc.ENI) filterTable[vpc.Instance] {
	primary := func(v values[vpc.ENI]) values[vpc.Instance] {
		return func(i *vpc.Instance) []string {
			list := enis(i.ID)
			if k := slices.IndexFunc(list, func(e *vpc.ENI) bool { return e.Attachment.Primary() }); k >= 0 {
				return v(list[k])
			}
			return nil
		}
	}
	of := n.eniFilters()
	address := text(func(e *vpc.ENI) string {
		if !e.Primary.IsValid() {
			return ""
		}
		return e.Primary.String()
	})
	return filterTable[vpc.Instance]{
		"instance.group-id":   primary(of["group-id"]),
		"instance.group-name": primary(of["group-name"]),
		"ipv6-address": func(i *vpc.Instance) (out []string) {
			for _, e := range enis(i.ID) {
				out = append(out, each(e.IPv6, netip.Addr.String)...)
			}
			return out
		},
		"private-dns-name":   primary(of["private-dns-name"]),
		"private-ip-address": primary(address),
		"source-dest-check":  primary(of["source-dest-check"]),
	}
}

// hypervisor is how DescribeInstances spells that of a type: bare metal has Nitro's.
func hypervisor(instanceType string) string {
	e, ok := limits.Find(instanceType)
	if ok && e.Hypervisor == limits.BareMetal {
		return limits.HypervisorNitro
	}
	return e.Hypervisor
}

// typeFilters are the filters of DescribeInstanceTypes about what the lab
// knows of a type: its network.
func typeFilters() filterTable[limits.Entry] {
	info := func(f func(typeXML) string) values[limits.Entry] {
		return text(func(e *limits.Entry) string { return f(typeInfo(e)) })
	}
	return filterTable[limits.Entry]{
		"bare-metal":         info(func(x typeXML) string { return strconv.FormatBool(x.BareMetal) }),
		"current-generation": info(func(x typeXML) string { return strconv.FormatBool(x.Current) }),
		"hypervisor":         info(func(x typeXML) string { return x.Hypervisor }),
		"instance-type":      info(func(x typeXML) string { return x.Type }),

		"network-info.ipv4-addresses-per-interface": info(func(x typeXML) string { return strconv.Itoa(x.IPv4) }),
		"network-info.ipv6-addresses-per-interface": info(func(x typeXML) string { return strconv.Itoa(x.IPv6) }),
		"network-info.ipv6-supported":               info(func(x typeXML) string { return strconv.FormatBool(x.HasIPv6) }),
		"network-info.maximum-network-cards":        info(func(x typeXML) string { return strconv.Itoa(x.MaxCards) }),
		"network-info.maximum-network-interfaces":   info(func(x typeXML) string { return strconv.Itoa(x.MaxENIs) }),
	}
}

// statusFilters are the filters of DescribeInstanceStatus.
func (n names) statusFilters() filterTable[vpc.Instance] {
	of := n.instanceTable(false)
	t := filterTable[vpc.Instance]{"operator.managed": of["operator.managed"]}
	for _, name := range []string{"availability-zone", "availability-zone-id", "instance-state-code", "instance-state-name"} {
		t[name] = of[name]
	}
	for _, kind := range []string{"instance-status", "system-status"} {
		t[kind+".status"] = text(func(i *vpc.Instance) string { return health(i.State).Status })
		t[kind+".reachability"] = text(func(i *vpc.Instance) string { return health(i.State).reachability() })
	}
	t["attached-ebs-status.status"] = t["instance-status.status"]
	return t.absent(
		"application-status.status", "event.code", "event.description", "event.instance-event-id", "event.not-after",
		"event.not-before", "event.not-before-deadline", "operator.principal",
	)
}
