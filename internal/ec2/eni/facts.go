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

// facts is the state of one ENI according to EC2 or a stored inventory.
type facts struct {
	ID                    string
	MAC                   net.HardwareAddr
	VPCID, Zone, SubnetID string
	Groups                []string
	Primary               netip.Addr        // the ENI's own address
	held                  []netip.Prefix    // for pods, sorted, addresses as single-address prefixes
	ownIPv6               int               // IPv6 addresses used by the instance itself
	Attachment            *cloud.Attachment // nil if detached

	trunk bool // has branches rather than addresses for pods
	owner ownership
}

// factsOf converts EC2's description of an ENI. adopt are the systems whose ENIs Berth adopts.
func factsOf(e cloud.ENI, cluster string, adopt ...string) facts {
	own := 0
	if primary(e.Attachment) { // EC2 does not report which of them the operating system uses
		own, e.IPv6 = len(e.IPv6), nil
	}
	return facts{
		ID: e.ID, MAC: e.MAC, VPCID: e.VPCID, Zone: e.Zone, SubnetID: e.SubnetID, Groups: e.Groups, Primary: e.Primary,
		held: cloud.SortPrefixes(held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)), ownIPv6: own, Attachment: e.Attachment,
		trunk: e.Type == cloud.InterfaceTrunk, owner: ownershipOf(e, cluster, adopt),
	}
}

// facts converts a stored inventory of an ENI that was attached to an instance.
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

// The tags that identify Berth's ENIs, set by the creation call itself.
const (
	TagCluster    = "berth.dev/cluster"
	TagInstanceID = "berth.dev/instance-id"
	TagOwner      = "berth.dev/owner"
	// TagCreatedAt is the time when Berth created an ENI, in RFC 3339; EC2 does not report it.
	TagCreatedAt = "berth.dev/created-at"
	// TagUnmanaged, with any value but "false", makes Berth leave an ENI alone.
	TagUnmanaged = "berth.dev/unmanaged"
	// TagNIC marks an ENI that is, or will be, a branch. Its value identifies a pod's NIC. The ENI is created and
	// deleted with the NIC, and is never treated as an orphan.
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

// ownership is the evidence of who owns an ENI.
type ownership struct {
	instanceTag string // the value of TagInstanceID
	createdTag  string // the value of TagCreatedAt
	tagged      bool   // has the tags of this cluster and of Berth
	described   bool   // has a description in Berth's format
	adopted     bool   // another system created it for the instance, and Berth adopts its ENIs
	excluded    bool   // left alone because of its type, TagNIC or TagUnmanaged
}

func ownershipOf(e cloud.ENI, cluster string, adopt []string) ownership {
	unmanaged, ok := e.Tags[TagUnmanaged]
	// A branch has no attachment, and its status is not that of a detached ENI.
	branch := e.Type == cloud.InterfaceBranch || e.Attachment == nil && e.Status == "in-use"
	other := e.Type != "" && e.Type != cloud.InterfaceOrdinary && e.Type != cloud.InterfaceTrunk
	return ownership{
		instanceTag: e.Tags[TagInstanceID], createdTag: e.Tags[TagCreatedAt],
		tagged:    cluster != "" && e.Tags[TagCluster] == cluster && e.Tags[TagOwner] == Owner,
		described: strings.HasPrefix(e.Description, descriptionStart),
		adopted:   creatorsInstance(e, adopt) != "",
		excluded:  ok && !strings.EqualFold(unmanaged, "false") || branch || e.Tags[TagNIC] != "" || other,
	}
}

// createdAt returns when Berth created the ENI; zero if unknown.
func (o ownership) createdAt() time.Time {
	if o.createdTag == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, o.createdTag)
	if err != nil {
		return time.Time{}
	}
	return t
}

// ours reports whether Berth may change an ENI: it must be on the first network card, and be the primary or have
// the tags of this cluster and of Berth, or be adopted. A detached ENI, which could be deleted, and a trunk also need a
// description in Berth's format, or be adopted. EFA interfaces, branches, foreign and unmanaged ENIs are only observed.
func (f facts) ours() bool {
	switch {
	case f.owner.excluded, f.trunk && !f.owner.described: // a trunk of another system has branches of its pods
		return false
	case f.Attachment == nil:
		return f.owner.described && f.owner.tagged || f.owner.adopted
	default:
		return f.Attachment.NetworkCard == 0 && (primary(f.Attachment) || f.owner.tagged || f.owner.adopted)
	}
}

// primary reports whether an attachment is that of the instance's primary ENI.
func primary(a *cloud.Attachment) bool {
	return a != nil && a.DeviceIndex == 0 && a.NetworkCard == 0
}

// hasPrimary reports whether a list contains the instance's primary ENI.
func hasPrimary(list []cloud.ENI) bool {
	return slices.ContainsFunc(list, func(e cloud.ENI) bool { return primary(e.Attachment) })
}
