package cloudfake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Instance implements cloud.API with one DescribeInstances call.
func (c *Cloud) Instance(ctx context.Context, id string) (out cloud.Instance, err error) {
	q := call{"Instance", pace.DescribeInstances, "", 0}
	err = c.do(ctx, q, func() error {
		in := c.State.enis.instances[id]
		if in == nil {
			return q.refuse(cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", id)
		}
		out = in.Instance
		f := cloud.ENIFilter{InstanceID: id}
		for _, e := range c.State.enis.candidates(f) {
			if matches(e, f) {
				out.ENIs = append(out.ENIs, clone(e))
			}
		}
		return nil
	})
	return out, err
}

// Instances implements cloud.API with one DescribeInstances call.
func (c *Cloud) Instances(ctx context.Context, ids []string) (out []cloud.Instance, err error) {
	err = c.do(ctx, call{"Instances", pace.DescribeInstances, "", 0}, func() error {
		for _, id := range ids {
			if in := c.State.enis.instances[id]; in != nil {
				out = append(out, in.Instance)
			}
		}
		return nil
	})
	return out, err
}

// Limits implements cloud.API from the table of package limits.
func (c *Cloud) Limits(ctx context.Context, instanceType string) (out cloud.Limits, err error) {
	q := call{"Limits", pace.DescribeTypes, "", 0}
	err = c.do(ctx, q, func() error {
		l, ok := c.State.enis.limitsOf(instanceType)
		if !ok {
			return q.refuse(cloud.Bug, "InvalidInstanceType", "no instance type %q", instanceType)
		}
		out = l
		return nil
	})
	return out, err
}

// ENIs implements cloud.API with one DescribeNetworkInterfaces call per page.
func (c *Cloud) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	var out []cloud.ENI
	for token, more := "", true; more; more = token != "" {
		page, next, err := c.ENIPage(ctx, f, token)
		if err != nil {
			return nil, err
		}
		out, token = append(out, page...), next
	}
	return out, nil
}

// ENIPage implements pace.Calls, in the order of creation. A filter by ID, instance or status "available" limits
// the search to those ENIs.
func (c *Cloud) ENIPage(ctx context.Context, f cloud.ENIFilter, token string) (page []cloud.ENI, next string, err error) {
	q := call{"ENIs", pace.DescribeENIs, "", 0}
	err = c.do(ctx, q, func() error {
		from := 0
		if token != "" {
			var err error
			if from, err = strconv.Atoi(token); err != nil {
				return q.refuse(cloud.Bug, "InvalidNextToken.Malformed", "token %q: expected one from a previous page", token)
			}
		}
		list := c.State.enis.candidates(f)
		i, _ := slices.BinarySearchFunc(list, from, func(e *eni, seq int) int { return cmp.Compare(e.seq, seq) })
		for _, e := range list[i:] {
			if e.deleted || !matches(e, f) {
				continue
			}
			if len(page) == c.pageSize {
				next = strconv.Itoa(e.seq)
				return nil
			}
			page = append(page, clone(e))
		}
		return nil
	})
	return page, next, err
}

// candidates returns a superset of the ENIs that match a filter, in the order of creation. State.mu is held.
func (es *enis) candidates(f cloud.ENIFilter) []*eni {
	var list []*eni
	if old, ok := es.past.shown(es.clock.Now()); ok {
		if len(f.IDs) > 0 {
			old = slices.DeleteFunc(slices.Clone(old), func(e *eni) bool { return !slices.Contains(f.IDs, e.ID) })
		}
		return old
	}
	switch {
	case len(f.IDs) > 0:
		for _, id := range f.IDs {
			if e := es.byID[id]; e != nil {
				list = append(list, e)
			}
		}
	case f.InstanceID != "" || len(f.InstanceIDs) > 0:
		ids := f.InstanceIDs
		if f.InstanceID != "" {
			ids = []string{f.InstanceID}
		}
		for _, id := range ids {
			if in := es.instances[id]; in != nil {
				list = append(list, in.enis...)
			}
		}
	case f.Status == "available":
		list = slices.AppendSeq(list, maps.Values(es.detached))
	default:
		return es.order
	}
	slices.SortFunc(list, func(a, b *eni) int { return cmp.Compare(a.seq, b.seq) })
	return slices.Compact(list)
}

func matches(e *eni, f cloud.ENIFilter) bool {
	on := ""
	if e.Attachment != nil {
		on = e.Attachment.InstanceID
	}
	for k, values := range f.Tagged {
		if v, ok := e.Tags[k]; len(values) > 0 && (!ok || !slices.Contains(values, v)) {
			return false
		}
	}
	return (len(f.Types) == 0 || slices.Contains(f.Types, e.Type)) && (f.InstanceID == "" || f.InstanceID == on) &&
		(len(f.InstanceIDs) == 0 || on != "" && slices.Contains(f.InstanceIDs, on)) &&
		(f.VPCID == "" || f.VPCID == e.VPCID) && (f.Status == "" || f.Status == e.Status) && tagged(e.Tags, f.Tags)
}

func tagged(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Subnets implements cloud.API, sorted by ID.
func (c *Cloud) Subnets(ctx context.Context, f cloud.SubnetFilter) (out []cloud.Subnet, err error) {
	err = c.do(ctx, call{"Subnets", pace.DescribeSubnets, "", 0}, func() error {
		for _, id := range slices.Sorted(maps.Keys(c.State.subnets)) {
			s := c.State.subnets[id].Subnet
			s.Free, s.IPv6 = c.State.subnets[id].left, slices.Clone(s.IPv6)
			if (len(f.IDs) == 0 || slices.Contains(f.IDs, id)) && (f.VPCID == "" || f.VPCID == s.VPCID) &&
				(f.Zone == "" || f.Zone == s.Zone) && tagged(s.Tags, f.Tags) {
				out = append(out, s)
			}
		}
		return nil
	})
	return out, err
}

// SecurityGroups implements cloud.API.
func (c *Cloud) SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) (out []string, err error) {
	err = c.do(ctx, call{"SecurityGroups", pace.DescribeSecurityGroups, "", 0}, func() error {
		for _, id := range slices.Sorted(maps.Keys(c.State.groups)) {
			if vpcID == VPC && tagged(c.State.groups[id], tags) {
				out = append(out, id)
			}
		}
		return nil
	})
	return out, err
}

// RouteTables implements cloud.API.
func (c *Cloud) RouteTables(ctx context.Context, vpcID string) (out []cloud.RouteTable, err error) {
	err = c.do(ctx, call{"RouteTables", pace.DescribeRouteTables, "", 0}, func() error {
		if vpcID == VPC {
			out = slices.Clone(c.State.routes)
		}
		return nil
	})
	return out, err
}

// whole returns a listing that fits on one page.
func whole[T any](list []T, err error) ([]T, string, error) { return list, "", err }

// InstancePage implements pace.Calls.
func (c *Cloud) InstancePage(ctx context.Context, ids []string, _ string) ([]cloud.Instance, string, error) {
	return whole(c.Instances(ctx, ids))
}

// SubnetPage implements pace.Calls.
func (c *Cloud) SubnetPage(ctx context.Context, f cloud.SubnetFilter, _ string) ([]cloud.Subnet, string, error) {
	return whole(c.Subnets(ctx, f))
}

// SecurityGroupPage implements pace.Calls.
func (c *Cloud) SecurityGroupPage(ctx context.Context, vpcID string, tags map[string]string, _ string) ([]string, string, error) {
	return whole(c.SecurityGroups(ctx, vpcID, tags))
}

// RouteTablePage implements pace.Calls.
func (c *Cloud) RouteTablePage(ctx context.Context, vpcID, _ string) ([]cloud.RouteTable, string, error) {
	return whole(c.RouteTables(ctx, vpcID))
}
