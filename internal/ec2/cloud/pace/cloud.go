package pace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// filterValues is the maximum number of values in all filters of a describe call (EC2 API Reference, "Error codes", FilterLimitExceeded).
const filterValues = 200

// mostAtOnce is the maximum number of addresses, or prefixes, of a family in one call. No ENI can have as
// many.
const mostAtOnce = 1000

// MaxPages is the maximum number of pages of a listing. EC2 does not have more.
const MaxPages = 1000

// Calls is a cloud that sends each call once. Cloud turns it into a cloud.API. Listings have pages: token is
// next of the previous page, empty for the first; next is empty for the last page. Filters have at most 200
// values. Every error is or wraps a *cloud.Error; a *Reply has more details.
type Calls interface {
	InstancePage(ctx context.Context, ids []string, token string) (page []cloud.Instance, next string, err error)
	ENIPage(ctx context.Context, f cloud.ENIFilter, token string) (page []cloud.ENI, next string, err error)
	SubnetPage(ctx context.Context, f cloud.SubnetFilter, token string) (page []cloud.Subnet, next string, err error)
	SecurityGroupPage(ctx context.Context, vpcID string, tags map[string]string, token string) (page []string, next string, err error)
	RouteTablePage(ctx context.Context, vpcID, token string) (page []cloud.RouteTable, next string, err error)
	Limits(ctx context.Context, instanceType string) (cloud.Limits, error)
	cloud.Changes
}

// Cloud makes a cloud.API of single calls. Each call waits for its turn, is counted, and is repeated
// according to the Options and its kind. A method makes as many calls as EC2 needs: one a page and 200
// values of a filter, two for an instance with its ENIs, none for invalid or empty requests. The limits of
// an instance type are requested once.
func Cloud(calls Calls, o Options) cloud.API {
	p := &paced{calls: calls, set: NewSet(o)}
	p.types = instanceTypes{options: p.set.options, known: make(map[string]knownLimits)}
	p.types.ask = func(ctx context.Context, instanceType string) (cloud.Limits, error) {
		return do(ctx, p, DescribeTypes, func(ctx context.Context) (cloud.Limits, error) { return calls.Limits(ctx, instanceType) })
	}
	return p
}

type paced struct {
	calls Calls
	set   *Set
	types instanceTypes
}

// do makes a call with a result.
func do[T any](ctx context.Context, p *paced, c Call, call func(context.Context) (T, error)) (out T, err error) {
	err = p.set.Do(ctx, c, func(ctx context.Context) Reply {
		got, err := call(ctx)
		if err == nil {
			out = got
			return Reply{}
		}
		if r, ok := errors.AsType[*Reply](err); ok {
			return *r
		}
		e, ok := errors.AsType[*cloud.Error](err)
		if !ok {
			e = &cloud.Error{Class: cloud.Transient, Op: c.Action, Err: err}
		}
		return Reply{Err: e}
	})
	return out, err
}

// try makes a call without a result.
func try(ctx context.Context, p *paced, c Call, call func(context.Context) error) error {
	_, err := do(ctx, p, c, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// pages makes the calls of a listing. A page that has what another had ends it,
// where unique says what that is.
func pages[T any](ctx context.Context, p *paced, c Call, unique *once[T], page func(ctx context.Context, token string) ([]T, string, error)) ([]T, error) {
	var out []T
	token, before := "", map[string]bool{}
	for range MaxPages {
		var next string
		list, err := do(ctx, p, c, func(ctx context.Context) (list []T, err error) {
			list, next, err = page(ctx, token)
			return list, err
		})
		if err == nil {
			err = unique.check(c, list)
		}
		switch {
		case err != nil:
			return nil, err
		case next == "":
			return append(out, list...), nil
		case before[next]:
			return nil, malformed(c, "nextToken %q: expected another than those of the pages before", next)
		}
		before[next] = true
		out, token = append(out, list...), next
	}
	return nil, malformed(c, "nextToken: more than %d pages", MaxPages)
}

// malformed is the error for a reply that EC2 would not send.
func malformed(c Call, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Transient, Op: c.Action, Err: fmt.Errorf("malformed answer: "+format, args...)}
}

// Instance implements cloud.API with two calls, since only the listing of interfaces has their tags.
func (p *paced) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	list, err := p.Instances(ctx, []string{id})
	switch {
	case err != nil:
		return cloud.Instance{}, err
	case len(list) == 0:
		return cloud.Instance{}, &cloud.Error{
			Class: cloud.Gone, Op: DescribeInstances.Action, Code: "InvalidInstanceID.NotFound",
			Message: fmt.Sprintf("The instance ID '%s' does not exist", id),
		}
	}
	if list[0].ENIs, err = p.ENIs(ctx, cloud.ENIFilter{InstanceID: id}); err != nil {
		return cloud.Instance{}, err
	}
	return list[0], nil
}

// Instances implements cloud.API.
func (p *paced) Instances(ctx context.Context, ids []string) (out []cloud.Instance, err error) {
	instances := onlyOnce("instancesSet", func(in *cloud.Instance) string { return in.ID })
	for part := range slices.Chunk(ids, filterValues) {
		got, err := pages(ctx, p, DescribeInstances, instances, func(ctx context.Context, token string) ([]cloud.Instance, string, error) {
			return p.calls.InstancePage(ctx, part, token)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return checkInstances(ids, out)
}

// Limits implements cloud.API.
func (p *paced) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	return p.types.Limits(ctx, instanceType)
}

// ENIs implements cloud.API.
func (p *paced) ENIs(ctx context.Context, f cloud.ENIFilter) (out []cloud.ENI, err error) {
	for _, part := range eniParts(f) {
		got, err := pages(ctx, p, DescribeENIs, nil, func(ctx context.Context, token string) ([]cloud.ENI, string, error) {
			return p.calls.ENIPage(ctx, part, token)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return distinctENIs(out)
}

// Subnets implements cloud.API.
func (p *paced) Subnets(ctx context.Context, f cloud.SubnetFilter) (out []cloud.Subnet, err error) {
	subnets := onlyOnce("subnetSet", func(s *cloud.Subnet) string { return s.ID })
	for _, part := range subnetParts(f) {
		got, err := pages(ctx, p, DescribeSubnets, subnets, func(ctx context.Context, token string) ([]cloud.Subnet, string, error) {
			return p.calls.SubnetPage(ctx, part, token)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// SecurityGroups implements cloud.API. Without tags it lists all groups of the VPC.
func (p *paced) SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) ([]string, error) {
	out, err := pages(ctx, p, DescribeSecurityGroups, nil, func(ctx context.Context, token string) ([]string, string, error) {
		return p.calls.SecurityGroupPage(ctx, vpcID, tags, token)
	})
	slices.Sort(out)
	return out, err
}

// RouteTables implements cloud.API.
func (p *paced) RouteTables(ctx context.Context, vpcID string) ([]cloud.RouteTable, error) {
	tables := onlyOnce("routeTableSet", func(t *cloud.RouteTable) string { return t.ID })
	out, err := pages(ctx, p, DescribeRouteTables, tables, func(ctx context.Context, token string) ([]cloud.RouteTable, string, error) {
		return p.calls.RouteTablePage(ctx, vpcID, token)
	})
	if err != nil {
		return nil, err
	}
	return checkRouteTables(out)
}

// wrong is the error for an invalid request, which is not sent.
func wrong(c Call, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Bug, Op: c.Action, Message: fmt.Sprintf(format, args...)}
}

// checkAmount refuses invalid amounts, which EC2 would misunderstand. A valid one has either addresses or
// prefixes of each family.
func checkAmount(c Call, n cloud.Amount) error {
	for _, f := range ipfamily.Dual.Families() {
		switch addresses, prefixes := n.Of(f); {
		case min(addresses, prefixes) < 0, max(addresses, prefixes) > mostAtOnce:
			return wrong(c, "%d %s addresses and %d prefixes asked for: expected 0 to %d", addresses, f, prefixes, mostAtOnce)
		case addresses > 0 && prefixes > 0:
			return wrong(c, "%d %s addresses and %d prefixes asked for: expected one of the two, as EC2 gives one kind in a call", addresses, f, prefixes)
		}
	}
	return nil
}

// ofFamily selects the call for the family of an amount, which must have one family and either addresses or
// prefixes. Its errors are of class Bug.
func ofFamily(n cloud.Amount, calls [ipfamily.Number]Call) (Call, error) {
	c := calls[n.Family()]
	switch four, six := n.Has(ipfamily.IPv4), n.Has(ipfamily.IPv6); {
	case four && six:
		return c, wrong(c, "IPv4 and IPv6 asked for: expected one family, as EC2 has a call for each")
	case !four && !six:
		return c, wrong(c, "no addresses and no prefixes asked for: expected 1 to %d", mostAtOnce)
	}
	return c, checkAmount(c, n)
}

// CreateENI implements cloud.API. Without a client token in the request it generates one, so that its own
// attempts create one ENI. Invalid requests, and a token of another request, are errors of class Bug.
func (p *paced) CreateENI(ctx context.Context, req cloud.CreateENI) (cloud.ENI, error) {
	if err := checkAmount(CreateENI, req.Amount); err != nil {
		return cloud.ENI{}, err
	}
	switch {
	case req.Type != "" && req.Type != cloud.InterfaceOrdinary && req.Type != cloud.InterfaceTrunk:
		return cloud.ENI{}, wrong(CreateENI, "an ENI of type %q asked for: expected %q or %q", req.Type, cloud.InterfaceOrdinary, cloud.InterfaceTrunk)
	case req.Primary.IsValid() && !req.Primary.Is4():
		return cloud.ENI{}, wrong(CreateENI, "primary address %s asked for: expected an IPv4 address", req.Primary)
	case req.IPv6Address.IsValid() && (req.IPv6Address.Is4() || req.IPv6Address.Is4In6() || req.Has(ipfamily.IPv6)):
		return cloud.ENI{}, wrong(CreateENI, "address %s, and %d of IPv6, asked for: expected an IPv6 address, or a number of them", req.IPv6Address, req.IPv6)
	}
	if req.ClientToken == "" {
		req.ClientToken = rand.Text()
	}
	return do(ctx, p, CreateENI, func(ctx context.Context) (cloud.ENI, error) { return p.calls.CreateENI(ctx, req) })
}

// AttachENI implements cloud.API. The class of the error is Conflict for a device index in use, and
// LimitReached for an instance without room.
func (p *paced) AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (string, error) {
	return do(ctx, p, AttachENI, func(ctx context.Context) (string, error) {
		return p.calls.AttachENI(ctx, eniID, instanceID, deviceIndex)
	})
}

// DetachENI implements cloud.API.
func (p *paced) DetachENI(ctx context.Context, attachmentID string) error {
	return try(ctx, p, DetachENI, func(ctx context.Context) error { return p.calls.DetachENI(ctx, attachmentID) })
}

// DeleteENI implements cloud.API. For an attached or detaching ENI the class of the error is Conflict.
func (p *paced) DeleteENI(ctx context.Context, eniID string) error {
	return try(ctx, p, DeleteENI, func(ctx context.Context) error { return p.calls.DeleteENI(ctx, eniID) })
}

// SetDeleteOnTermination implements cloud.API.
func (p *paced) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error {
	return try(ctx, p, ModifyENI, func(ctx context.Context) error {
		return p.calls.SetDeleteOnTermination(ctx, eniID, attachmentID, on)
	})
}

// AssignAddresses implements cloud.API.
func (p *paced) AssignAddresses(ctx context.Context, eniID string, n cloud.Amount) ([]netip.Prefix, error) {
	c, err := ofFamily(n, AssignOf)
	if err != nil {
		return nil, err
	}
	return do(ctx, p, c, func(ctx context.Context) ([]netip.Prefix, error) { return p.calls.AssignAddresses(ctx, eniID, n) })
}

// UnassignAddresses implements cloud.API. For an address that is not on the ENI the class of the error is
// Gone, and no address is removed.
func (p *paced) UnassignAddresses(ctx context.Context, eniID string, things []netip.Prefix) error {
	if len(things) == 0 {
		return nil
	}
	c, err := ofFamily(cloud.AmountOf(things), UnassignOf)
	if err != nil {
		return err
	}
	return try(ctx, p, c, func(ctx context.Context) error { return p.calls.UnassignAddresses(ctx, eniID, things) })
}

// Tag implements cloud.API.
func (p *paced) Tag(ctx context.Context, resourceID string, tags map[string]string) error {
	if len(tags) == 0 {
		return nil
	}
	return try(ctx, p, Tag, func(ctx context.Context) error { return p.calls.Tag(ctx, resourceID, tags) })
}

// AssociateBranch implements cloud.API. Without a client token it generates one, so that its own attempts
// make one association. An invalid VLAN, and a token of another request, are errors of class Bug.
func (p *paced) AssociateBranch(ctx context.Context, a cloud.Association, clientToken string) (cloud.Association, error) {
	if a.VLAN < 1 || a.VLAN > cloud.MaxVLAN {
		return cloud.Association{}, wrong(AssociateBranch, "VLAN %d asked for: expected 1 to %d", a.VLAN, cloud.MaxVLAN)
	}
	if clientToken == "" {
		clientToken = rand.Text()
	}
	return do(ctx, p, AssociateBranch, func(ctx context.Context) (cloud.Association, error) {
		return p.calls.AssociateBranch(ctx, a, clientToken)
	})
}

// DisassociateBranch implements cloud.API.
func (p *paced) DisassociateBranch(ctx context.Context, associationID string) error {
	return try(ctx, p, DisassociateBranch, func(ctx context.Context) error { return p.calls.DisassociateBranch(ctx, associationID) })
}

// SetGroups implements cloud.API. An empty list of groups is an error of class Bug, because EC2 would ignore
// it.
func (p *paced) SetGroups(ctx context.Context, eniID string, groups []string) error {
	if len(groups) == 0 {
		return wrong(ModifyENI, "no security groups asked for %s: expected one at least", eniID)
	}
	return try(ctx, p, ModifyENI, func(ctx context.Context) error { return p.calls.SetGroups(ctx, eniID, groups) })
}
