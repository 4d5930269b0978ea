package eni

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	ownIPv6               int               // IPv6 addresses that the instance itself uses
	Attachment            *cloud.Attachment // nil: detached

	trunk bool // it has branches rather than addresses for pods
	owner ownership
}

// factsOf reads EC2's description of an ENI.
func factsOf(e cloud.ENI, cluster string) facts {
	own := 0
	if primary(e.Attachment) { // EC2 does not tell which of them the instance's system uses
		own, e.IPv6 = len(e.IPv6), nil
	}
	return facts{
		ID: e.ID, MAC: e.MAC, VPCID: e.VPCID, Zone: e.Zone, SubnetID: e.SubnetID, Groups: e.Groups, Primary: e.Primary,
		held: cloud.SortPrefixes(held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)), ownIPv6: own, Attachment: e.Attachment,
		trunk: e.Type == cloud.InterfaceTrunk, owner: ownershipOf(e, cluster),
	}
}

// facts returns what a stored inventory says of an ENI, which was attached to an instance.
func (e ENI) facts(instance string) facts {
	own := func(p netip.Prefix) bool { return e.PrimaryIPv4.IsValid() && p == cloud.HostPrefix(e.PrimaryIPv4) }
	return facts{
		ID: e.ID, MAC: []byte(e.MAC), SubnetID: e.SubnetID, Groups: e.Groups, Primary: e.PrimaryIPv4,
		held:       cloud.SortPrefixes(slices.DeleteFunc(e.held(), own)),
		Attachment: &cloud.Attachment{InstanceID: instance, DeviceIndex: e.DeviceIndex, Status: "attached"},
		owner:      ownership{tagged: !e.Primary, instanceTag: instance},
	}
}

// held returns addresses and prefixes as one list of prefixes.
func held(addrs []netip.Addr, prefixes []netip.Prefix, ipv6 []netip.Addr, ipv6Prefixes []netip.Prefix) []netip.Prefix {
	return slices.Concat(cloud.HostPrefixes(addrs), prefixes, cloud.HostPrefixes(ipv6), ipv6Prefixes)
}

// phase returns whether the ENI is attached, detached or being detached.
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

// split returns the IPv4 addresses and prefixes and the IPv6 addresses and prefixes of a sorted list.
func split(held []netip.Prefix) (addrs []netip.Addr, prefixes []netip.Prefix, ipv6 []netip.Addr, ipv6Prefixes []netip.Prefix) {
	n := 0
	for n < len(held) && held[n].Addr().Is4() {
		n++
	}
	addrs, prefixes = cloud.Split(held[:n])
	ipv6, ipv6Prefixes = cloud.Split(held[n:])
	return addrs, prefixes, ipv6, ipv6Prefixes
}

// The tags by which Berth knows its ENIs, set in the creation call itself.
const (
	TagCluster    = "berth.dev/cluster"
	TagInstanceID = "berth.dev/instance-id"
	TagOwner      = "berth.dev/owner"
	// TagCreatedAt is when Berth created an ENI, in RFC 3339; EC2 keeps no such time.
	TagCreatedAt = "berth.dev/created-at"
	// TagUnmanaged, with any value but "false", has Berth leave an ENI alone.
	TagUnmanaged = "berth.dev/unmanaged"
	// TagNIC is on an ENI that is, or will be, a branch. It has the address of a pod's
	// NIC, is created and deleted with the NIC, and is never treated as an orphan.
	TagNIC = "berth.dev/nic"
)

// Owner is the value of TagOwner.
const Owner = "berth"

// Description returns the description of an ENI that Berth creates for an instance.
func Description(instanceID string) string { return descriptionStart + instanceID + ")" }

const descriptionStart = "Berth ("

// creationTags returns the tags of a new ENI.
func (c *Config) creationTags(now time.Time) map[string]string {
	return map[string]string{
		TagCluster:    c.Cluster,
		TagInstanceID: c.InstanceID,
		TagOwner:      Owner,
		TagCreatedAt:  now.UTC().Format(time.RFC3339),
	}
}

// ownership is what shows whose an ENI is.
type ownership struct {
	instanceTag string // the value of TagInstanceID
	createdTag  string // likewise of TagCreatedAt
	tagged      bool   // it has the tags of this cluster and of Berth
	described   bool   // its description is one of Berth's
	excluded    bool   // Berth leaves it alone: its type, a NIC, or TagUnmanaged
}

func ownershipOf(e cloud.ENI, cluster string) ownership {
	unmanaged, ok := e.Tags[TagUnmanaged]
	// A branch has no attachment, and is not detached by its status either.
	branch := e.Type == cloud.InterfaceBranch || e.Attachment == nil && e.Status == "in-use"
	other := e.Type != "" && e.Type != cloud.InterfaceOrdinary && e.Type != cloud.InterfaceTrunk
	return ownership{
		instanceTag: e.Tags[TagInstanceID], createdTag: e.Tags[TagCreatedAt],
		tagged:    cluster != "" && e.Tags[TagCluster] == cluster && e.Tags[TagOwner] == Owner,
		described: strings.HasPrefix(e.Description, descriptionStart),
		excluded:  ok && !strings.EqualFold(unmanaged, "false") || branch || e.Tags[TagNIC] != "" || other,
	}
}

// createdAt returns when Berth created the ENI; zero: not known.
func (o ownership) createdAt() time.Time {
	t, err := time.Parse(time.RFC3339, o.createdTag)
	if err != nil {
		return time.Time{}
	}
	return t
}

// ours reports whether Berth may change an ENI: one on the first network card that is the primary, or
// has the tags of this cluster and of Berth. A detached ENI, which could be deleted, and a trunk need a
// description of Berth's too. EFA interfaces, branches, ENIs that others created and unmanaged ones are
// only observed.
func (f facts) ours() bool {
	switch {
	case f.owner.excluded, f.trunk && !f.owner.described:
		return false
	case f.Attachment == nil:
		return f.owner.described && f.owner.tagged
	default:
		return f.Attachment.NetworkCard == 0 && (primary(f.Attachment) || f.owner.tagged)
	}
}

// primary reports whether an attachment is that of the ENI that came with the instance.
func primary(a *cloud.Attachment) bool {
	return a != nil && a.DeviceIndex == 0 && a.NetworkCard == 0
}

// hasPrimary reports whether the ENI that came with the instance is in a list.
func hasPrimary(list []cloud.ENI) bool {
	return slices.ContainsFunc(list, func(e cloud.ENI) bool { return primary(e.Attachment) })
}
