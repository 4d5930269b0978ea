package aws

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// This file compares replies with their requests. The callers compare them with what is known of the
// node. Since the call took effect, an impossible reply is like a lost one: Transient.

// assigned refuses another amount than was requested: EC2 assigns all or nothing. n has one family. The
// reply may lack the ID of the ENI.
func (r *reading) assigned(eniID string, n cloud.Amount, repliedID *string, things []netip.Prefix) {
	r.as("networkInterfaceId", sdk.ToString(repliedID), eniID)
	if got := cloud.AmountOf(things); got != n {
		r.bad("assigned", amountText(got, n.Family()), amountText(n, n.Family()))
	}
	for i, t := range things {
		if slices.Contains(things[:i], t) {
			r.bad("assigned", fmt.Sprint(things), "each once")
		}
	}
}

// created refuses an ENI of another type or address than was requested.
func (r *reading) created(req cloud.CreateENI, e cloud.ENI) {
	defer r.in("networkInterface", e.ID)()
	if property, got, want := req.Differs(e); property != "" {
		r.bad(property, got, want)
	}
}

// amountText describes an amount of one family, such as "3 IPv4 addresses and 0 prefixes".
func amountText(n cloud.Amount, f ipfamily.Family) string {
	addresses, prefixes := n.Of(f)
	return fmt.Sprintf("%d %s addresses and %d prefixes", addresses, f, prefixes)
}

// listed refuses an ENI that does not match the filter.
func (r *reading) listed(f cloud.ENIFilter, e cloud.ENI) {
	defer r.in("networkInterfaceSet", e.ID)()
	if len(f.IDs) > 0 && !slices.Contains(f.IDs, e.ID) {
		r.bad("networkInterfaceId", e.ID, "one of the requested ones")
	}
	instance, instances := "", f.InstanceIDs
	if e.Attachment != nil {
		instance = e.Attachment.InstanceID
	}
	if f.InstanceID != "" {
		instances = []string{f.InstanceID}
	}
	if len(instances) > 0 && !slices.Contains(instances, instance) {
		r.bad("attachment.instanceId", instance, "one of the requested ones")
	}
	if f.Status == "available" && e.Attachment != nil {
		r.bad("attachment.instanceId", instance, "a detached ENI")
	}
	r.as("status", e.Status, f.Status)
	r.as("vpcId", e.VPCID, f.VPCID)
	if len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) {
		r.bad("interfaceType", string(e.Type), "one of the requested ones")
	}
	r.tagged(e.Tags, f.Tags)
	for _, k := range slices.Sorted(maps.Keys(f.Tagged)) {
		if values := f.Tagged[k]; len(values) > 0 && !slices.Contains(values, e.Tags[k]) {
			r.bad("tagSet["+k+"]", e.Tags[k], "one of the requested ones")
		}
	}
}

// listedSubnet refuses a subnet that does not match the filter.
func (r *reading) listedSubnet(f cloud.SubnetFilter, s cloud.Subnet) {
	defer r.in("subnetSet", s.ID)()
	if len(f.IDs) > 0 && !slices.Contains(f.IDs, s.ID) {
		r.bad("subnetId", s.ID, "one of the requested ones")
	}
	r.as("vpcId", s.VPCID, f.VPCID)
	r.as("availabilityZone", s.Zone, f.Zone)
	r.tagged(s.Tags, f.Tags)
}

// as refuses a property that differs from the requested one, if both are set.
func (r *reading) as(field, got, want string) {
	if got != "" && want != "" && got != want {
		r.bad(field, got, want)
	}
}

func (r *reading) tagged(tags, asked map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(asked)) {
		if tags[k] != asked[k] {
			r.bad("tagSet["+k+"]", tags[k], asked[k])
		}
	}
}
