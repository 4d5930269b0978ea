package ec2api

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// XML of the API's data types (EC2 API Reference, "Data types"), without the fields that the lab does not
// support.

// done is the reply to a call without a result.
type done struct {
	Return bool `xml:"return"`
}

type tagXML struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type groupXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type addressXML struct {
	Address string `xml:"privateIpAddress"`
	DNS     string `xml:"privateDnsName,omitempty"`
	Primary bool   `xml:"primary"`
}

type ipv6XML struct {
	Address string `xml:"ipv6Address"`
	Primary bool   `xml:"-" filter:"isPrimaryIpv6"`
}

type prefix4XML struct {
	Prefix string `xml:"ipv4Prefix"`
}

type prefix6XML struct {
	Prefix string `xml:"ipv6Prefix"`
}

type attachmentXML struct {
	ID                  string `xml:"attachmentId"`
	InstanceID          string `xml:"instanceId,omitempty"`
	InstanceOwnerID     string `xml:"instanceOwnerId,omitempty"`
	DeviceIndex         int    `xml:"deviceIndex"`
	NetworkCardIndex    int    `xml:"networkCardIndex"`
	Status              string `xml:"status"`
	AttachTime          string `xml:"attachTime"`
	DeleteOnTermination bool   `xml:"deleteOnTermination"`
}

type eniXML struct {
	ID               string         `xml:"networkInterfaceId"`
	SubnetID         string         `xml:"subnetId"`
	VPCID            string         `xml:"vpcId"`
	Zone             string         `xml:"availabilityZone,omitempty"`
	ZoneID           string         `xml:"availabilityZoneId,omitempty"`
	Description      string         `xml:"description"`
	OwnerID          string         `xml:"ownerId"`
	RequesterID      string         `xml:"requesterId,omitempty"`
	RequesterManaged *bool          `xml:"requesterManaged"`
	Status           string         `xml:"status"`
	MAC              string         `xml:"macAddress"`
	PrivateIP        string         `xml:"privateIpAddress,omitempty"`
	PrivateDNS       string         `xml:"privateDnsName,omitempty"`
	SourceDestCheck  bool           `xml:"sourceDestCheck"`
	Groups           []groupXML     `xml:"groupSet>item"`
	Attachment       *attachmentXML `xml:"attachment"`
	Tags             []tagXML       `xml:"tagSet>item"`
	Addresses        []addressXML   `xml:"privateIpAddressesSet>item"`
	IPv6             []ipv6XML      `xml:"ipv6AddressesSet>item"`
	Prefixes         []prefix4XML   `xml:"ipv4PrefixSet>item"`
	IPv6Prefixes     []prefix6XML   `xml:"ipv6PrefixSet>item"`
	InterfaceType    string         `xml:"interfaceType"`
	Native           bool           `xml:"ipv6Native,omitempty"`
}

// names provides properties of the account and names of other resources for replies.
type names struct {
	account string
	region  string
	groups  map[string]string // security group names by ID
	zones   map[string]string // zone IDs by name
}

// architecture is the architecture of all instances.
const architecture = "x86_64"

func (r *request) names() names {
	n := names{r.cloud.Account(), r.cloud.Region(), map[string]string{}, r.cloud.ZoneIDs()}
	for _, g := range r.cloud.Described().Groups() {
		n.groups[g.ID] = g.Name
	}
	return n
}

func (n names) groupSet(ids []string) []groupXML {
	return each(ids, func(id string) groupXML { return groupXML{id, n.groups[id]} })
}

func (n names) eni(e *vpc.ENI) eniXML {
	managed := false
	x := n.eniCommon(e)
	x.Zone, x.ZoneID, x.RequesterID, x.RequesterManaged = e.Zone, n.zones[e.Zone], e.RequesterID, &managed
	x.Tags = tagSet(e.Tags)
	if a := e.Attachment; a != nil {
		x.Attachment.InstanceID, x.Attachment.InstanceOwnerID = a.InstanceID, n.account
	}
	return x
}

// eniCommon are the fields of an ENI that DescribeNetworkInterfaces and DescribeInstances share.
func (n names) eniCommon(e *vpc.ENI) eniXML {
	x := eniXML{
		ID: e.ID, SubnetID: e.SubnetID, VPCID: e.VPCID, Description: e.Description, OwnerID: n.account,
		Status: e.Status(), MAC: e.MAC.String(), Native: e.IPv6Native(),
		SourceDestCheck: e.SourceDestCheck, Groups: n.groupSet(e.Groups), InterfaceType: e.InterfaceType(),
		IPv6:     each(e.IPv6, func(a netip.Addr) ipv6XML { return ipv6XML{Address: a.String()} }),
		Prefixes: each(e.Prefixes, func(p netip.Prefix) prefix4XML { return prefix4XML{p.String()} }),
	}
	x.IPv6Prefixes = each(e.IPv6Prefixes, func(p netip.Prefix) prefix6XML { return prefix6XML{p.String()} })
	for _, a := range e.IPv4() {
		x.Addresses = append(x.Addresses, addressXML{a.String(), n.dns(a), a == e.Primary})
	}
	if len(x.Addresses) > 0 {
		x.PrivateIP, x.PrivateDNS = x.Addresses[0].Address, x.Addresses[0].DNS
	}
	if a := e.Attachment; a != nil {
		x.Attachment = &attachmentXML{
			ID: a.ID, DeviceIndex: a.DeviceIndex, NetworkCardIndex: a.NetworkCard, Status: string(a.Status),
			AttachTime: stamp(a.Time), DeleteOnTermination: a.DeleteOnTermination,
		}
	}
	return x
}

// dns returns the private DNS name of an IPv4 address, or "" without one.
func (n names) dns(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return n.domain("ip-" + strings.ReplaceAll(a.String(), ".", "-"))
}

// domain returns a host's name in the region's private domain.
func (n names) domain(host string) string { return host + "." + n.region + ".compute.internal" }

func tagSet(t vpc.Tags) []tagXML {
	var out []tagXML
	for _, k := range slices.Sorted(maps.Keys(t)) {
		out = append(out, tagXML{k, t[k]})
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func each[T, U any](in []T, f func(T) U) []U {
	var out []U
	for _, v := range in {
		out = append(out, f(v))
	}
	return out
}

type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

// stateCodes are EC2's codes of instance states.
var stateCodes = map[vpc.InstanceState]int{
	vpc.Pending: 0, vpc.Running: 16, vpc.ShuttingDown: 32, vpc.Terminated: 48, vpc.Stopping: 64, vpc.Stopped: 80,
}

func state(s vpc.InstanceState) stateXML { return stateXML{stateCodes[s], string(s)} }

type profileXML struct {
	ARN string `xml:"arn"`
	ID  string `xml:"id"`
}

type instanceXML struct {
	ID              string      `xml:"instanceId"`
	ImageID         string      `xml:"imageId"`
	State           stateXML    `xml:"instanceState"`
	PrivateDNS      string      `xml:"privateDnsName"`
	LaunchIndex     int         `xml:"amiLaunchIndex"`
	ClientToken     string      `xml:"clientToken,omitempty"`
	Type            string      `xml:"instanceType"`
	LaunchTime      string      `xml:"launchTime"`
	Zone            string      `xml:"placement>availabilityZone"`
	ZoneID          string      `xml:"placement>availabilityZoneId"`
	Tenancy         string      `xml:"placement>tenancy"`
	SubnetID        string      `xml:"subnetId,omitempty"`
	VPCID           string      `xml:"vpcId,omitempty"`
	PrivateIP       string      `xml:"privateIpAddress,omitempty"`
	IPv6            string      `xml:"ipv6Address,omitempty"`
	SourceDestCheck bool        `xml:"sourceDestCheck"`
	Groups          []groupXML  `xml:"groupSet>item"`
	Architecture    string      `xml:"architecture"`
	Interfaces      []eniXML    `xml:"networkInterfaceSet>item"`
	Tags            []tagXML    `xml:"tagSet>item"`
	Profile         *profileXML `xml:"iamInstanceProfile"`
	HTTPTokens      string      `xml:"metadataOptions>httpTokens"`
	HTTPEndpoint    string      `xml:"metadataOptions>httpEndpoint"`

	// Fields only for filters. Terminated instances have them too.
	OwnerID       string `xml:"-" filter:"ownerId"`
	ReservationID string `xml:"-" filter:"reservationId"`
	Hypervisor    string `xml:"-" filter:"hypervisor"`
	LaunchedIn    string `xml:"-" filter:"launchedIn"`
	LaunchedInVPC string `xml:"-" filter:"launchedInVpc"`
	Checked       *bool  `xml:"-" filter:"checked"` // SourceDestCheck, if there is a primary ENI
}

// profile returns the instance profile of a role, or an empty one without a role.
func (n names) profile(role string) profileXML {
	if role == "" {
		return profileXML{}
	}
	return profileXML{"arn:aws:iam::" + n.account + ":instance-profile/" + role, "AIPALAB" + strings.ToUpper(role)}
}

func (n names) instance(i *vpc.Instance, enis []*vpc.ENI, v1 bool) instanceXML {
	x := instanceXML{
		ID: i.ID, ImageID: i.ImageID, State: state(i.State), Type: i.Type, LaunchTime: stamp(i.Launched),
		Zone: i.Zone, ZoneID: n.zones[i.Zone], Tenancy: "default", Architecture: architecture, Tags: tagSet(i.Tags),
		LaunchIndex: i.LaunchIndex, ClientToken: i.ClientToken,
		HTTPTokens: "required", HTTPEndpoint: "enabled",
		OwnerID: n.account, ReservationID: i.ReservationID, Hypervisor: hypervisor(i.Type), LaunchedIn: i.SubnetID, LaunchedInVPC: i.VPCID,
	}
	if v1 {
		x.HTTPTokens = "optional"
	}
	if i.Role != "" {
		p := n.profile(i.Role)
		x.Profile = &p
	}
	if i.State == vpc.Terminated {
		return x
	}
	x.SubnetID, x.VPCID = i.SubnetID, i.VPCID
	for _, e := range enis {
		x.Interfaces = append(x.Interfaces, n.eniCommon(e))
		if e.Attachment.Primary() {
			x.PrivateDNS = n.dns(e.Primary)
			if e.IPv6Native() { // named after the resource (EC2 User Guide, "Instance hostnames")
				x.PrivateDNS = n.domain(i.ID)
			} else {
				x.PrivateIP = e.Primary.String()
			}
			x.SourceDestCheck, x.Checked, x.Groups = e.SourceDestCheck, &e.SourceDestCheck, n.groupSet(e.Groups)
			if len(e.IPv6) > 0 {
				x.IPv6 = e.IPv6[0].String()
			}
		}
	}
	return x
}

type reservationXML struct {
	ID        string        `xml:"reservationId"`
	OwnerID   string        `xml:"ownerId"`
	Instances []instanceXML `xml:"instancesSet>item"`
}

// reservations groups instances by the call that launched them.
func (n names) reservations(list []*vpc.Instance, enis func(instanceID string) []*vpc.ENI, v1 bool) []reservationXML {
	var out []reservationXML
	at := map[string]int{}
	for _, i := range list {
		k, ok := at[i.ReservationID]
		if !ok {
			k = len(out)
			at[i.ReservationID] = k
			out = append(out, reservationXML{ID: i.ReservationID, OwnerID: n.account})
		}
		out[k].Instances = append(out[k].Instances, n.instance(i, enis(i.ID), v1))
	}
	return out
}
