package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
)

var _ cloud.API = (*Cloud)(nil)

// do is the frame of every call: latency, faults, the books, the record.
func (c *Cloud) do(ctx context.Context, op, eniID string, n int, work func() error) (err error) {
	c.mu.Lock()
	delay, ok := c.latency[op]
	if !ok {
		delay = c.latency[""]
	}
	c.mu.Unlock()
	if delay > 0 {
		select {
		case <-ctx.Done():
			return &cloud.Error{Class: cloud.Transient, Op: op, Err: ctx.Err()}
		case <-c.clock.After(delay):
		}
	}
	if ctx.Err() != nil {
		return &cloud.Error{Class: cloud.Transient, Op: op, Err: ctx.Err()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.calls = append(c.calls, Call{Op: op, ENI: eniID, N: n, At: c.clock.Now(), Err: err}) }()
	c.settle()
	f := c.fault(op, eniID)
	if f != nil && !f.After {
		return f.Err
	}
	if err := work(); err != nil {
		return err
	}
	if f != nil {
		return f.Err
	}
	return nil
}

// change is do for calls that write.
func (c *Cloud) change(ctx context.Context, op, eniID string, n int, work func() error) error {
	return c.do(ctx, op, eniID, n, func() error {
		if len(c.past) == 0 {
			c.remember()
		}
		err := work()
		if err == nil {
			c.remember()
		}
		return err
	})
}

func (c *Cloud) fault(op, eniID string) *Fault {
	for _, f := range c.faults {
		if (f.Op == "" || f.Op == op) && (f.ENI == "" || f.ENI == eniID) && (f.Times == 0 || f.hits < f.Times) {
			f.hits++
			return f
		}
	}
	return nil
}

func refuse(op string, class cloud.Class, code, format string, args ...any) error {
	return &cloud.Error{Class: class, Op: op, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Err makes an error of a class, for faults.
func Err(class cloud.Class, code string) error {
	return &cloud.Error{Class: class, Op: "fault", Code: code, Message: "injected"}
}

// Instance implements cloud.API.
func (c *Cloud) Instance(ctx context.Context, id string) (out cloud.Instance, err error) {
	err = c.do(ctx, "Instance", "", 0, func() error {
		in, ok := c.instances[id]
		if !ok {
			return refuse("DescribeInstances", cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", id)
		}
		out = in
		out.ENIs = slices.DeleteFunc(c.listing(), func(e cloud.ENI) bool { return !on(e, id) })
		return nil
	})
	return out, err
}

func on(e cloud.ENI, instance string) bool {
	return e.Attachment != nil && e.Attachment.InstanceID == instance
}

// Instances implements cloud.API.
func (c *Cloud) Instances(ctx context.Context, ids []string) (out []cloud.Instance, err error) {
	err = c.do(ctx, "Instances", "", 0, func() error {
		for _, id := range ids {
			if in, ok := c.instances[id]; ok {
				out = append(out, in)
			}
		}
		return nil
	})
	return out, err
}

// Limits implements cloud.API.
func (c *Cloud) Limits(ctx context.Context, itype string) (out cloud.Limits, err error) {
	err = c.do(ctx, "Limits", "", 0, func() error {
		l, ok := c.types[itype]
		if !ok {
			return refuse("DescribeInstanceTypes", cloud.Bug, "InvalidInstanceType", "no type %s", itype)
		}
		out = l
		return nil
	})
	return out, err
}

// ENIs implements cloud.API.
func (c *Cloud) ENIs(ctx context.Context, f cloud.ENIFilter) (out []cloud.ENI, err error) {
	err = c.do(ctx, "ENIs", "", 0, func() error {
		out = slices.DeleteFunc(c.listing(), func(e cloud.ENI) bool {
			return len(f.IDs) > 0 && !slices.Contains(f.IDs, e.ID) ||
				f.InstanceID != "" && !on(e, f.InstanceID) ||
				len(f.InstanceIDs) > 0 && !slices.ContainsFunc(f.InstanceIDs, func(id string) bool { return on(e, id) }) ||
				f.VPCID != "" && e.VPCID != f.VPCID ||
				f.Status != "" && e.Status != f.Status || !tagged(e.Tags, f.Tags)
		})
		return nil
	})
	return out, err
}

func tagged(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Subnets implements cloud.API.
func (c *Cloud) Subnets(ctx context.Context, f cloud.SubnetFilter) (out []cloud.Subnet, err error) {
	err = c.do(ctx, "Subnets", "", 0, func() error {
		for _, id := range slices.Sorted(maps.Keys(c.subnets)) {
			s := c.subnets[id].Subnet
			s.Free = c.subnets[id].free()
			if len(f.IDs) > 0 && !slices.Contains(f.IDs, id) || f.VPCID != "" && s.VPCID != f.VPCID ||
				f.Zone != "" && s.Zone != f.Zone || !tagged(s.Tags, f.Tags) {
				continue
			}
			out = append(out, s)
		}
		return nil
	})
	return out, err
}

// SecurityGroups implements cloud.API.
func (c *Cloud) SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) (out []string, err error) {
	err = c.do(ctx, "SecurityGroups", "", 0, func() error {
		for _, id := range slices.Sorted(maps.Keys(c.groups)) {
			if vpcID == "vpc-1" && tagged(c.groups[id], tags) {
				out = append(out, id)
			}
		}
		return nil
	})
	return out, err
}

// RouteTables implements cloud.API.
func (c *Cloud) RouteTables(ctx context.Context, _ string) (out []cloud.RouteTable, err error) {
	err = c.do(ctx, "RouteTables", "", 0, func() error {
		out = append([]cloud.RouteTable{{ID: "rtb-main", Main: true}}, c.routes...)
		return nil
	})
	return out, err
}

// whole is a listing that fits on one page.
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

// ENIPage implements pace.Calls.
func (c *Cloud) ENIPage(ctx context.Context, f cloud.ENIFilter, _ string) ([]cloud.ENI, string, error) {
	return whole(c.ENIs(ctx, f))
}
