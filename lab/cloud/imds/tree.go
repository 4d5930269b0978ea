package imds

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// tree is the metadata of one instance: values by path, without the version.
type tree map[string]string

// get returns the value at a path, or the names below it, one per line, with a slash after each name that
// has names below it. The path of a list may end in a slash, that of a value must not.
func (t tree) get(path string) (string, bool) {
	if v, ok := t[path]; ok {
		return v, true
	}
	path = strings.TrimSuffix(path, "/")
	prefix := path + "/"
	if path == "" {
		prefix = ""
	}
	var names []string
	for k := range t {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok {
			continue
		}
		name, _, deeper := strings.Cut(rest, "/")
		if deeper {
			name += "/"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "\n"), len(names) > 0
}

// tree returns the current metadata of an instance.
func (h *handler) tree(id string) (tree, bool) {
	view := h.cloud.Metadata()
	i, enis := view.Self(id)
	if i == nil {
		return nil, false
	}
	b := builder{tree{}, view, i, enis}
	b.instance(h.cloud)
	for _, e := range enis {
		if e.Attachment.Status == vpc.Attached {
			b.eni(h.cloud, e)
		}
	}
	b.role(h.cloud)
	return b.tree, true
}

type builder struct {
	tree
	view vpc.View
	i    *vpc.Instance
	enis []*vpc.ENI
}

func (b builder) set(path, value string) {
	if value != "" {
		b.tree["meta-data/"+path] = value
	}
}

func (b builder) instance(c *vpc.Cloud) {
	b.set("ami-id", b.i.ImageID)
	b.set("instance-id", b.i.ID)
	b.set("instance-type", b.i.Type)
	b.set("instance-life-cycle", "on-demand")
	b.set("placement/availability-zone", b.i.Zone)
	b.set("placement/availability-zone-id", c.ZoneIDs()[b.i.Zone])
	b.set("placement/region", c.Region())
	b.set("services/domain", "amazonaws.com")
	b.set("services/partition", "aws")
	b.set("reservation-id", b.i.ReservationID)
	document := map[string]any{
		"accountId": c.Account(), "architecture": "x86_64", "availabilityZone": b.i.Zone, "imageId": b.i.ImageID,
		"instanceId": b.i.ID, "instanceType": b.i.Type, "pendingTime": b.i.Launched.UTC().Format(time.RFC3339),
		"region": c.Region(), "version": "2017-09-30",
	}
	for _, e := range b.enis {
		if !e.Attachment.Primary() {
			continue
		}
		if e.Primary.IsValid() {
			document["privateIp"] = e.Primary.String()
			b.set("local-ipv4", e.Primary.String())
		}
		b.set("mac", e.MAC.String())
		b.set("local-hostname", hostname(c, b.i, e.Primary))
		b.set("hostname", hostname(c, b.i, e.Primary))
		b.set("security-groups", b.groupNames(e))
		if len(e.IPv6) > 0 {
			b.set("ipv6", e.IPv6[0].String())
		}
	}
	b.tree["dynamic/instance-identity/document"] = object(document)
}

// eni sets the values below network/interfaces/macs/MAC.
func (b builder) eni(c *vpc.Cloud, e *vpc.ENI) {
	set := func(name, value string) { b.set("network/interfaces/macs/"+e.MAC.String()+"/"+name, value) }
	set("device-number", strconv.Itoa(e.Attachment.DeviceIndex))
	if l, _ := limits.Find(b.i.Type); l.NetworkCards > 1 {
		set("network-card", strconv.Itoa(e.Attachment.NetworkCard))
	}
	set("interface-id", e.ID)
	set("mac", e.MAC.String())
	set("owner-id", c.Account())
	if e.Type != "efa-only" {
		set("local-hostname", hostname(c, b.i, e.Primary))
	}
	set("local-ipv4s", lines(e.IPv4()))
	set("ipv4-prefix", lines(e.Prefixes))
	set("ipv6s", lines(e.IPv6))
	set("ipv6-prefix", lines(e.IPv6Prefixes))
	set("security-group-ids", strings.Join(e.Groups, "\n"))
	set("security-groups", b.groupNames(e))
	set("subnet-id", e.SubnetID)
	set("vpc-id", e.VPCID)
	for _, s := range b.view.Subnets() {
		if s.ID == e.SubnetID {
			if !s.IPv6Native() {
				set("subnet-ipv4-cidr-block", s.CIDR.String())
			}
			if s.IPv6.IsValid() {
				set("subnet-ipv6-cidr-blocks", s.IPv6.String())
			}
		}
	}
	for _, v := range b.view.VPCs() {
		if v.ID == e.VPCID {
			set("vpc-ipv4-cidr-block", v.CIDRs[0].String())
			set("vpc-ipv4-cidr-blocks", lines(v.CIDRs))
			set("vpc-ipv6-cidr-blocks", lines(v.IPv6CIDRs))
		}
	}
}

func (b builder) groupNames(e *vpc.ENI) string {
	var names []string
	for _, g := range b.view.Groups() {
		if slices.Contains(e.Groups, g.ID) {
			names = append(names, g.Name)
		}
	}
	return strings.Join(names, "\n")
}

// role sets the credentials of the instance's role.
func (b builder) role(c *vpc.Cloud) {
	role, key, ok := c.Keys.RoleCredentials(b.i.ID)
	if !ok {
		return
	}
	issued := key.Issued.UTC().Format(time.RFC3339)
	b.set("iam/info", object(map[string]any{
		"Code": "Success", "LastUpdated": issued,
		"InstanceProfileArn": "arn:aws:iam::" + c.Account() + ":instance-profile/" + role,
		"InstanceProfileId":  "AIPALAB" + strings.ToUpper(role),
	}))
	b.set("iam/security-credentials/"+role, object(map[string]any{
		"Code": "Success", "LastUpdated": issued, "Type": "AWS-HMAC", "AccessKeyId": key.ID,
		"SecretAccessKey": key.Secret, "Token": key.Token, "Expiration": key.Expires.UTC().Format(time.RFC3339),
	}))
}

// hostname returns the hostname of an instance's ENI, from its IPv4 address or, without one, from the
// instance ID (EC2 User Guide, "Instance hostnames").
func hostname(c *vpc.Cloud, i *vpc.Instance, a netip.Addr) string {
	name := i.ID
	if a.IsValid() {
		name = "ip-" + strings.ReplaceAll(a.String(), ".", "-")
	}
	return name + "." + c.Region() + ".compute.internal"
}

func lines[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, "\n")
}

// object formats JSON like the service: indented, with sorted keys.
func object(m map[string]any) string {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return ""
	}
	return string(b)
}
