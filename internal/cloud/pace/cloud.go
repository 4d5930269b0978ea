package pace

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/cloud"
)

// filterValues is the most values that a filter of a describe call may have
// (EC2 API Reference, "Filter").
const filterValues = 200

// Pager is a cloud.API that lists ENIs by pages, as EC2 does: next is empty
// for the last one, else the token of the page that follows.
type Pager interface {
	ENIPage(ctx context.Context, f cloud.ENIFilter, token string) (page []cloud.ENI, next string, err error)
}

// Cloud puts a Set before a cloud that is called directly, such as one in
// memory: its calls wait, are counted and repeated as those of a client of EC2
// are. A method of cloud.API becomes as many calls as it takes with EC2: one a
// page where api is a Pager, one for 200 IDs, two for an instance with its ENIs.
func Cloud(api cloud.API, s *Set) cloud.API {
	return &paced{api: api, set: s, types: make(map[string]cloud.Limits)}
}

type paced struct {
	api    cloud.API
	set    *Set
	asking singleflight.Group // DescribeInstanceTypes calls under way, by type

	mu    sync.Mutex // guards types
	types map[string]cloud.Limits
}

// do makes a call whose outcome is a value.
func do[T any](ctx context.Context, p *paced, c Call, call func(context.Context) (T, error)) (out T, err error) {
	err = p.set.Do(ctx, c, func(ctx context.Context) Reply {
		got, err := call(ctx)
		if err == nil {
			out = got
			return Reply{}
		}
		e, ok := errors.AsType[*cloud.Error](err)
		if !ok {
			e = &cloud.Error{Class: cloud.Transient, Op: c.Action, Err: err}
		}
		return Reply{Err: e}
	})
	return out, err
}

// try makes a call that has no value.
func try(ctx context.Context, p *paced, c Call, call func(context.Context) error) error {
	_, err := do(ctx, p, c, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// Instance implements cloud.API.
func (p *paced) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	in, err := do(ctx, p, DescribeInstances, func(ctx context.Context) (cloud.Instance, error) { return p.api.Instance(ctx, id) })
	if err != nil {
		return cloud.Instance{}, err
	}
	if in.ENIs, err = p.ENIs(ctx, cloud.ENIFilter{InstanceID: id}); err != nil {
		return cloud.Instance{}, err
	}
	return in, nil
}

// Instances implements cloud.API.
func (p *paced) Instances(ctx context.Context, ids []string) ([]cloud.Instance, error) {
	var out []cloud.Instance
	for part := range slices.Chunk(ids, filterValues) {
		got, err := do(ctx, p, DescribeInstances, func(ctx context.Context) ([]cloud.Instance, error) { return p.api.Instances(ctx, part) })
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// Limits implements cloud.API. What the cloud said of a type is remembered.
func (p *paced) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	if l, ok := p.known(instanceType); ok {
		return l, nil
	}
	got, err, _ := p.asking.Do(instanceType, func() (any, error) {
		if l, ok := p.known(instanceType); ok {
			return l, nil
		}
		l, err := do(context.WithoutCancel(ctx), p, DescribeTypes, func(ctx context.Context) (cloud.Limits, error) { return p.api.Limits(ctx, instanceType) })
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.types[instanceType] = l
		}
		return l, err
	})
	if err != nil {
		return cloud.Limits{}, err
	}
	return got.(cloud.Limits), nil
}

func (p *paced) known(instanceType string) (cloud.Limits, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.types[instanceType]
	return l, ok
}

// ENIs implements cloud.API.
func (p *paced) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	var out []cloud.ENI
	for _, ids := range parts(f.IDs) {
		for _, instances := range parts(f.InstanceIDs) {
			f.IDs, f.InstanceIDs = ids, instances
			got, err := p.enis(ctx, f)
			if err != nil {
				return nil, err
			}
			out = append(out, got...)
		}
	}
	return out, nil
}

// parts are the values of a filter in chunks, one empty chunk for none.
func parts(values []string) [][]string {
	if len(values) == 0 {
		return [][]string{nil}
	}
	return slices.Collect(slices.Chunk(values, filterValues))
}

func (p *paced) enis(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	pager, ok := p.api.(Pager)
	if !ok {
		return do(ctx, p, DescribeENIs, func(ctx context.Context) ([]cloud.ENI, error) { return p.api.ENIs(ctx, f) })
	}
	var out []cloud.ENI
	for token, more := "", true; more; more = token != "" {
		page, err := do(ctx, p, DescribeENIs, func(ctx context.Context) (list []cloud.ENI, err error) {
			var next string
			if list, next, err = pager.ENIPage(ctx, f, token); err == nil {
				token = next
			}
			return list, err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
	}
	return out, nil
}

// Subnets implements cloud.API.
func (p *paced) Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error) {
	return do(ctx, p, DescribeSubnets, func(ctx context.Context) ([]cloud.Subnet, error) { return p.api.Subnets(ctx, f) })
}

// SecurityGroups implements cloud.API.
func (p *paced) SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) ([]string, error) {
	return do(ctx, p, DescribeSecurityGroups, func(ctx context.Context) ([]string, error) { return p.api.SecurityGroups(ctx, vpcID, tags) })
}

// RouteTables implements cloud.API.
func (p *paced) RouteTables(ctx context.Context, vpcID string) ([]cloud.RouteTable, error) {
	return do(ctx, p, DescribeRouteTables, func(ctx context.Context) ([]cloud.RouteTable, error) { return p.api.RouteTables(ctx, vpcID) })
}

// CreateENI implements cloud.API. Without a client token it is not repeated
// when its reply is lost.
func (p *paced) CreateENI(ctx context.Context, req cloud.CreateENI) (cloud.ENI, error) {
	c := CreateENI
	c.Idempotent = req.ClientToken != ""
	return do(ctx, p, c, func(ctx context.Context) (cloud.ENI, error) { return p.api.CreateENI(ctx, req) })
}

// AttachENI implements cloud.API.
func (p *paced) AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (string, error) {
	return do(ctx, p, AttachENI, func(ctx context.Context) (string, error) { return p.api.AttachENI(ctx, eniID, instanceID, deviceIndex) })
}

// DetachENI implements cloud.API.
func (p *paced) DetachENI(ctx context.Context, attachmentID string) error {
	return try(ctx, p, DetachENI, func(ctx context.Context) error { return p.api.DetachENI(ctx, attachmentID) })
}

// DeleteENI implements cloud.API.
func (p *paced) DeleteENI(ctx context.Context, eniID string) error {
	return try(ctx, p, DeleteENI, func(ctx context.Context) error { return p.api.DeleteENI(ctx, eniID) })
}

// SetDeleteOnTermination implements cloud.API.
func (p *paced) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error {
	return try(ctx, p, ModifyENI, func(ctx context.Context) error {
		return p.api.SetDeleteOnTermination(ctx, eniID, attachmentID, on)
	})
}

// AssignAddresses implements cloud.API.
func (p *paced) AssignAddresses(ctx context.Context, eniID string, n int) ([]netip.Addr, error) {
	return do(ctx, p, Assign, func(ctx context.Context) ([]netip.Addr, error) { return p.api.AssignAddresses(ctx, eniID, n) })
}

// AssignPrefixes implements cloud.API.
func (p *paced) AssignPrefixes(ctx context.Context, eniID string, n int) ([]netip.Prefix, error) {
	return do(ctx, p, Assign, func(ctx context.Context) ([]netip.Prefix, error) { return p.api.AssignPrefixes(ctx, eniID, n) })
}

// UnassignAddresses implements cloud.API.
func (p *paced) UnassignAddresses(ctx context.Context, eniID string, addrs []netip.Addr) error {
	return try(ctx, p, Unassign, func(ctx context.Context) error { return p.api.UnassignAddresses(ctx, eniID, addrs) })
}

// UnassignPrefixes implements cloud.API.
func (p *paced) UnassignPrefixes(ctx context.Context, eniID string, prefixes []netip.Prefix) error {
	return try(ctx, p, Unassign, func(ctx context.Context) error { return p.api.UnassignPrefixes(ctx, eniID, prefixes) })
}

// Tag implements cloud.API.
func (p *paced) Tag(ctx context.Context, resourceID string, tags map[string]string) error {
	return try(ctx, p, Tag, func(ctx context.Context) error { return p.api.Tag(ctx, resourceID, tags) })
}
