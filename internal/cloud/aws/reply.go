package aws

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/internal/cloud"
)

// A reply is compared with its request here; with what else is known of the
// node, by who called. The call has taken effect, so one that does not fit is
// like a lost one: Transient.

// asked is what an assignment asked for: so many addresses or prefixes.
type asked struct {
	eni string
	n   int
}

// reply is what an assignment answered.
type reply[T comparable] struct {
	eni  *string // may be left out
	got  []T
	rest int // how many of the other kind
}

// assigned returns what a reply says was assigned, if that is what was asked
// for. EC2 assigns all or nothing. Err is what of it could not be read.
func assigned[T comparable](op string, q asked, r reply[T], err error) ([]T, error) {
	switch {
	case err != nil:
	case r.eni != nil && *r.eni != q.eni:
		err = &badAnswer{fmt.Errorf("networkInterfaceId %q: expected %s", *r.eni, q.eni)}
	case len(r.got) != q.n || r.rest > 0:
		err = &badAnswer{fmt.Errorf("%d assigned, and %d of another kind: expected the %d asked for", len(r.got), r.rest, q.n)}
	case twice(r.got):
		err = &badAnswer{fmt.Errorf("assigned %v: expected each once", r.got)}
	}
	if err != nil {
		return nil, fail(op, err)
	}
	return r.got, nil
}

func twice[T comparable](list []T) bool {
	for i, x := range list {
		if slices.Contains(list[:i], x) {
			return true
		}
	}
	return false
}

// unassigned judges the one reply that says what was taken off an ENI.
func unassigned(op, eni string, addrs []netip.Addr, got *ec2.UnassignIpv6AddressesOutput) error {
	if id := sdk.ToString(got.NetworkInterfaceId); id != "" && id != eni {
		return fail(op, &badAnswer{fmt.Errorf("networkInterfaceId %q: expected %s", id, eni)})
	}
	var r reading
	for _, s := range got.UnassignedIpv6Addresses {
		if a := r.ipv6("unassignedIpv6Addresses", &s); !slices.Contains(addrs, a) {
			r.bad("unassignedIpv6Addresses", s, fmt.Sprintf("one of %v", addrs))
		}
	}
	if r.err != nil {
		return fail(op, r.err)
	}
	return nil
}

// scope is what a listing of ENIs was asked for.
type scope struct {
	ids, instances map[string]bool // nil: any
	vpc            string          // empty: any
	detached       bool            // alone
	tags           map[string]string
}

// set is nil for an empty list.
func set(list []string) map[string]bool {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]bool, len(list))
	for _, v := range list {
		m[v] = true
	}
	return m
}

func newScope(f cloud.ENIFilter) scope {
	instances := f.InstanceIDs
	if f.InstanceID != "" {
		instances = []string{f.InstanceID}
	}
	return scope{set(f.IDs), set(instances), f.VPCID, f.Status == "available", f.Tags}
}

// listed refuses an element of a listing that its filter does not let through.
func (r *reading) listed(s scope, e cloud.ENI) {
	defer r.in("networkInterfaceSet", e.ID)()
	if s.ids != nil && !s.ids[e.ID] {
		r.bad("networkInterfaceId", e.ID, "one of those asked for")
	}
	instance := ""
	if e.Attachment != nil {
		instance = e.Attachment.InstanceID
	}
	if s.instances != nil && !s.instances[instance] {
		r.bad("attachment.instanceId", instance, "one of those asked for")
	}
	if s.detached && e.Attachment != nil {
		r.bad("attachment.instanceId", instance, "a detached ENI, as asked for")
	}
	r.as("vpcId", e.VPCID, s.vpc)
	r.tagged(e.Tags, s.tags)
}

// listedSubnet is listed for subnets.
func (r *reading) listedSubnet(f cloud.SubnetFilter, s cloud.Subnet) {
	defer r.in("subnetSet", s.ID)()
	if len(f.IDs) > 0 && !slices.Contains(f.IDs, s.ID) {
		r.bad("subnetId", s.ID, "one of those asked for")
	}
	r.as("vpcId", s.VPCID, f.VPCID)
	r.as("availabilityZone", s.Zone, f.Zone)
	r.tagged(s.Tags, f.Tags)
}

// as refuses a property that is told, and not the one that was asked for.
func (r *reading) as(field, told, asked string) {
	if told != "" && asked != "" && told != asked {
		r.bad(field, told, asked)
	}
}

func (r *reading) tagged(tags, asked map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(asked)) {
		if tags[k] != asked[k] {
			r.bad("tagSet["+k+"]", tags[k], asked[k])
		}
	}
}

// twice refuses a listing that says two things of one.
func (r *reading) twice(set, id string) { r.bad(set, id, "each once") }
