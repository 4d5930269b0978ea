package eni

import (
	"net"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// facts are what EC2, or a stored inventory, says of one ENI.
type facts struct {
	ID                    string
	MAC                   net.HardwareAddr
	VPCID, Zone, SubnetID string
	Groups                []string
	Primary               netip.Addr        // the ENI's own address
	held                  []netip.Prefix    // for pods, in order, addresses as prefixes of full length
	ownIPv6               int               // IPv6 addresses of the instance's own
	Attachment            *cloud.Attachment // nil: detached

	trunk bool // it has branches rather than addresses for pods
	owner ownership
}

// factsOf reads EC2's description of an ENI.
func factsOf(e cloud.ENI, cluster string) facts {
	own := 0
	if primary(e.Attachment) { // nothing tells which of them the instance's system uses
		own, e.IPv6 = len(e.IPv6), nil
	}
	return facts{
		ID: e.ID, MAC: e.MAC, VPCID: e.VPCID, Zone: e.Zone, SubnetID: e.SubnetID, Groups: e.Groups, Primary: e.Primary,
		held: inOrder(held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)), ownIPv6: own, Attachment: e.Attachment,
		trunk: e.Type == cloud.InterfaceTrunk, owner: ownershipOf(e, cluster),
	}
}

// facts are those of a stored ENI, which was attached to an instance.
func (e ENI) facts(instance string) facts {
	own := func(p netip.Prefix) bool { return e.PrimaryIPv4.IsValid() && p == cloud.HostPrefix(e.PrimaryIPv4) }
	return facts{
		ID: e.ID, MAC: []byte(e.MAC), SubnetID: e.SubnetID, Groups: e.Groups, Primary: e.PrimaryIPv4,
		held:       inOrder(slices.DeleteFunc(e.held(), own)),
		Attachment: &cloud.Attachment{InstanceID: instance, DeviceIndex: e.DeviceIndex, Status: "attached"},
		owner:      ownership{tagged: !e.Primary, instanceTag: instance},
	}
}

// held are addresses and prefixes as prefixes.
func held(addrs []netip.Addr, prefixes []netip.Prefix, ipv6 []netip.Addr, ipv6Prefixes []netip.Prefix) []netip.Prefix {
	return slices.Concat(cloud.HostPrefixes(addrs), prefixes, cloud.HostPrefixes(ipv6), ipv6Prefixes)
}

// inOrder sorts a list and has each of its values once.
func inOrder(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// phase is where the ENI is on its way in or out.
func (f facts) phase() plan.Phase { return phaseOf(f.Attachment) }

func phaseOf(a *cloud.Attachment) plan.Phase {
	switch {
	case a == nil:
		return plan.Detached
	case a.Status == "detaching" || a.Status == "detached":
		return plan.Detaching
	default:
		return plan.Attached
	}
}

func (f facts) index() int {
	if f.Attachment == nil {
		return 0
	}
	return f.Attachment.DeviceIndex
}

// split sorts what an ENI holds, which is in order, into IPv4 and IPv6, and each
// into addresses and prefixes.
func split(held []netip.Prefix) (addrs []netip.Addr, prefixes []netip.Prefix, ipv6 []netip.Addr, ipv6Prefixes []netip.Prefix) {
	n := 0
	for n < len(held) && held[n].Addr().Is4() {
		n++
	}
	addrs, prefixes = cloud.Split(held[:n])
	ipv6, ipv6Prefixes = cloud.Split(held[n:])
	return addrs, prefixes, ipv6, ipv6Prefixes
}
