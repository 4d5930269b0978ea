package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
)

// observatory observes the cloud for all nodes: by full listings for repair, and by shared descriptions of what nodes
// must know now. It is the eni.Lister of every node's reconciler.
type observatory struct {
	cfg     *Config
	spawn   func(func(context.Context)) // runs work that may outlive its caller, until the fleet ends
	subnets *placement.Subnets
	known   func() map[string]places           // the instances of the fleet's nodes
	had     func(cloud.ENI, netip.Prefix) bool // whether an ENI is known to have an address or prefix
	ended   func()                             // called after the first full listing

	attached  gatherer[eni.Listing] // by instance ID
	looks     gatherer[[]cloud.ENI] // by ENI ID
	instances descriptions

	mu     sync.Mutex             // guards all below
	flight *listing               // the full listing in flight, or nil
	at     time.Time              // time of the last full listing
	failed bool                   // a full listing has failed, and none has succeeded
	listed map[string][]cloud.ENI // its parts, for the nodes that have not taken theirs
	pages  int                    // approximate number of its calls
}

// places are the VPCs in which a node has ENIs. Sure means that they were observed.
type places struct {
	vpcs []string
	sure bool
}

// within reports whether all ENIs of a node are certainly in the given VPCs; "" stands for all VPCs.
func (p places) within(vpcs map[string]bool) bool {
	out := func(vpc string) bool { return !vpcs[vpc] }
	return vpcs[""] || p.sure && !slices.ContainsFunc(p.vpcs, out)
}

// listing is a full listing in flight.
type listing struct {
	at    time.Time
	first bool // urgent, because nothing is known yet
	done  chan struct{}
	err   error // set once done
}

// The maximum size of a page and of a filter (EC2 API Reference, DescribeNetworkInterfaces and Filter).
const (
	pageSize     = 1000
	filterValues = 200
)

// Describe calls of one kind are spaced: nodes that join one after the other share calls, and lookups of single ENIs
// wait less.
const (
	nodeSpacing = time.Second
	lookSpacing = 250 * time.Millisecond
	// nodesOfCall is the number of nodes that are described together, by up to five calls at once: the first replies for
	// thousands of nodes do not wait for the last.
	nodesOfCall = 5 * filterValues
)

// firstPatience is how long a node without free addresses waits for the first full listing, which has a page for every few
// hundred nodes, before its own ENIs are described.
const firstPatience = 5 * time.Second

func newObservatory(cfg *Config, subnets *placement.Subnets, spawn func(func(context.Context)), known func() map[string]places) *observatory {
	o := &observatory{
		cfg: cfg, spawn: spawn, subnets: subnets, known: known,
	}
	o.attached = gatherer[eni.Listing]{clock: o.cfg.Clock, spacing: nodeSpacing, most: nodesOfCall, spawn: spawn, call: o.describeNodes}
	o.looks = gatherer[[]cloud.ENI]{clock: o.cfg.Clock, spacing: lookSpacing, spawn: spawn, call: o.describeENIs}
	o.instances.asked = gatherer[cloud.Instance]{clock: o.cfg.Clock, spacing: nodeSpacing, most: nodesOfCall, spawn: spawn, call: o.describeInstances}
	return o
}

// List implements eni.Lister. The first full listing, which the first request starts, serves the request if it is
// recent enough and includes the node. If it takes long, urgent requests do not wait for it. Later full listings are for
// repair: they come after other calls, and no request waits for them.
func (o *observatory) List(ctx context.Context, instanceID string, since time.Time) (eni.Listing, error) {
	o.mu.Lock()
	if o.flight == nil && o.at.IsZero() {
		o.begin()
	}
	f := o.flight
	o.mu.Unlock()
	if f == nil || !f.first || f.at.Before(since) {
		return o.describe(ctx, instanceID, nil)
	}
	if cloud.PriorityOf(ctx) > 0 {
		select {
		case <-f.done:
		case <-ctx.Done():
		case <-o.cfg.Clock.After(firstPatience):
			if l, err := o.describe(ctx, instanceID, f.done); !errors.Is(err, errListed) {
				return l, err
			}
		}
	}
	err := f.wait(context.WithoutCancel(ctx)) // the listing has a time limit of its own, which depends on its length
	clock.Turn(o.cfg.Clock, instanceID, 0)
	if err != nil {
		return eni.Listing{}, err
	}
	if l, ok := o.take(instanceID); ok && len(l.ENIs) > 0 {
		return l, nil
	}
	return o.describe(ctx, instanceID, nil)
}

// awaitsFirst reports whether the first full listing has not ended, and starts it. After a failed one, each node asks for its
// ENIs itself, and reports the error.
func (o *observatory) awaitsFirst() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.at.IsZero() || o.failed {
		return false
	}
	if o.flight == nil {
		o.begin()
	}
	return true
}

// describe lists the ENIs of an instance, without the detached ones once there was a full listing. The error is errListed if listed is closed first.
func (o *observatory) describe(ctx context.Context, instanceID string, listed <-chan struct{}) (eni.Listing, error) {
	a, err := o.attached.ask(ctx, instanceID, listed)
	if err != nil {
		return eni.Listing{}, fmt.Errorf("list the ENIs of %s: %w", instanceID, err)
	}
	a.value.At = a.at
	return a.value, nil
}

var errListed = errors.New("a full listing has ended")

func (f *listing) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take returns a node's part of the last full listing, once.
func (o *observatory) take(instanceID string) (eni.Listing, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	enis, ok := o.listed[instanceID]
	if !ok {
		return eni.Listing{}, false
	}
	delete(o.listed, instanceID)
	return eni.Listing{At: o.at, ENIs: enis, Of: eni.Whole}, true
}

// lastAt returns the time of the last full listing.
func (o *observatory) lastAt() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.at
}

// list makes a full listing, or waits for the one in flight.
func (o *observatory) list(ctx context.Context) error {
	o.mu.Lock()
	f := o.flight
	if f == nil {
		f = o.begin()
	}
	o.mu.Unlock()
	return f.wait(ctx)
}

// begin starts a full listing. o.mu is held.
func (o *observatory) begin() *listing {
	f := &listing{at: o.cfg.Clock.Now(), first: o.at.IsZero(), done: make(chan struct{})}
	o.flight = f
	o.spawn(func(ctx context.Context) {
		known := o.known()
		ctx, cancel := context.WithTimeout(ctx, listTimeout+time.Duration(len(known))*listTimeoutOfNode)
		defer cancel()
		if f.first {
			ctx = cloud.WithPriority(ctx, cloud.Begun)
		}
		all, vpcs, err := o.listAll(ctx, known)
		o.finish(f, all, vpcs, err)
	})
	return f
}

// listTimeout and, for each node, listTimeoutOfNode bound a full listing, including its waits for the limiter. Its pages, each
// with the ENIs of some hundred nodes, are requested one after the other.
const (
	listTimeout       = 5 * time.Minute
	listTimeoutOfNode = 10 * time.Millisecond
)

// listAll lists all ENIs in the VPCs of all nodes, and returns these VPCs. While no VPC is known, it lists the whole
// account as VPC "". Nodes whose VPCs are not yet known are described by instance ID.
func (o *observatory) listAll(ctx context.Context, known map[string]places) (all []cloud.ENI, vpcs map[string]bool, err error) {
	vpcs = map[string]bool{}
	for _, p := range known {
		for _, vpc := range p.vpcs {
			vpcs[vpc] = true
		}
	}
	if len(vpcs) == 0 {
		vpcs[""] = true
	}
	for vpc := range vpcs {
		list, err := o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{VPCID: vpc})
		if err != nil {
			return nil, nil, fmt.Errorf("list the ENIs of all nodes: %w", err)
		}
		all = append(all, list...)
	}
	return o.undisputed(all), vpcs, nil
}

// undisputed returns a listing without the addresses that it assigns to ENIs of several nodes.
func (o *observatory) undisputed(list []cloud.ENI) []cloud.ENI {
	owner := func(e cloud.ENI) string { id, _ := o.owner(e); return id }
	list, lost := eni.Undisputed(list, owner, o.had)
	if len(lost) > 0 {
		o.cfg.Logger.Warn("EC2 lists addresses for ENIs of several nodes: only the ENI that had them before keeps them", "addresses", lost)
	}
	return list
}

// parts splits a full listing of some VPCs by node. A node that may have ENIs elsewhere gets a part only if the
// listing includes its primary ENI.
func (o *observatory) parts(all []cloud.ENI, vpcs map[string]bool) map[string][]cloud.ENI {
	known := o.known()
	listed := make(map[string][]cloud.ENI, len(known))
	for id := range known {
		listed[id] = nil
	}
	for _, e := range all {
		if id, ok := o.owner(e); ok {
			if _, ok := listed[id]; ok {
				listed[id] = append(listed[id], e)
			}
		}
	}
	primary := func(e cloud.ENI) bool { return e.Attachment != nil && e.Attachment.DeviceIndex == 0 }
	for id, p := range known {
		if !p.within(vpcs) && !slices.ContainsFunc(listed[id], primary) {
			delete(listed, id)
		}
	}
	return listed
}

// finish stores the parts of a full listing, and wakes the requests that wait for it.
func (o *observatory) finish(f *listing, all []cloud.ENI, vpcs map[string]bool, err error) {
	var listed map[string][]cloud.ENI
	if err == nil {
		listed = o.parts(all, vpcs)
	}
	o.mu.Lock()
	o.flight, f.err, o.failed = nil, err, err != nil && o.at.IsZero()
	if err == nil {
		o.at, o.listed, o.pages = f.at, listed, (len(all)+pageSize-1)/pageSize
	}
	o.mu.Unlock()
	o.instances.listed()
	if o.cfg.Observer != nil {
		o.cfg.Observer.Listed(o.cfg.Clock.Now().Sub(f.at), err)
	}
	close(f.done)
	if f.first {
		o.ended()
	}
}

// owner returns the instance that an ENI is attached to, or for which this cluster created it.
func (o *observatory) owner(e cloud.ENI) (string, bool) {
	if e.Attachment != nil {
		return e.Attachment.InstanceID, true
	}
	id := e.Tags[eni.TagInstanceID]
	return id, id != "" && e.Tags[eni.TagCluster] == o.cfg.Cluster
}

// describeNodes lists the ENIs of the given instances, or of the whole account if that takes no more calls. Before the first
// full listing, which takes minutes in a large cluster, it includes their detached ENIs, which they would replace by new ones.
func (o *observatory) describeNodes(ctx context.Context, ids []string) (map[string]eni.Listing, error) {
	ctx = cloud.WithPriority(ctx, cloud.Begun)
	o.mu.Lock()
	pages, first := o.pages, o.at.IsZero()
	o.mu.Unlock()
	var list, detached []cloud.ENI
	group, ctx := errgroup.WithContext(ctx)
	calls := (len(ids) + filterValues - 1) / filterValues
	all := calls > 1 && pages > 0 && calls >= pages
	group.Go(func() (err error) {
		if all {
			list, err = o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{})
			return err
		}
		list, err = inParts(ctx, ids, func(ctx context.Context, part []string) ([]cloud.ENI, error) {
			return o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{InstanceIDs: part})
		})
		return err
	})
	if first {
		group.Go(func() (err error) {
			detached, err = o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{Status: "available", Tags: map[string]string{eni.TagCluster: o.cfg.Cluster}})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	of := eni.OnInstance
	if all || first {
		of = eni.Whole
	}
	return o.byInstance(append(list, onlyDetached(detached, list)...), ids, of), nil
}

// onlyDetached omits ENIs that another call lists as well: they were attached or detached meanwhile.
func onlyDetached(detached, attached []cloud.ENI) []cloud.ENI {
	if len(detached) == 0 {
		return nil
	}
	seen := make(map[string]bool, len(attached))
	for _, e := range attached {
		seen[e.ID] = true
	}
	return slices.DeleteFunc(detached, func(e cloud.ENI) bool { return seen[e.ID] })
}

// byInstance splits a list of some part of the ENIs by the instances that were asked for.
func (o *observatory) byInstance(list []cloud.ENI, ids []string, of eni.Part) map[string]eni.Listing {
	out := make(map[string]eni.Listing, len(ids))
	for _, id := range ids {
		out[id] = eni.Listing{Of: of}
	}
	for _, e := range o.undisputed(list) {
		id, owned := o.owner(e)
		if l, asked := out[id]; owned && asked && (e.Attachment != nil || of == eni.Whole) {
			l.ENIs = append(l.ENIs, e)
			out[id] = l
		}
	}
	return out
}

// inParts makes a call for each part of a list of IDs that fits into a filter, all at once.
func inParts[T any](ctx context.Context, ids []string, call func(ctx context.Context, part []string) ([]T, error)) ([]T, error) {
	parts := slices.Collect(slices.Chunk(ids, filterValues))
	results := make([][]T, len(parts))
	calls, ctx := errgroup.WithContext(ctx)
	for i, part := range parts {
		calls.Go(func() (err error) {
			results[i], err = call(ctx, part)
			return err
		})
	}
	err := calls.Wait()
	return slices.Concat(results...), err
}

func (o *observatory) describeENIs(ctx context.Context, ids []string) (map[string][]cloud.ENI, error) {
	list, err := o.cfg.Cloud.ENIs(cloud.WithPriority(ctx, cloud.Begun), cloud.ENIFilter{IDs: ids})
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		return nil, err
	}
	out := make(map[string][]cloud.ENI, len(list))
	for _, e := range list {
		out[e.ID] = []cloud.ENI{e}
	}
	return out, nil
}

func (o *observatory) describeInstances(ctx context.Context, ids []string) (map[string]cloud.Instance, error) {
	list, err := inParts(ctx, ids, o.cfg.Cloud.Instances)
	if err != nil {
		return nil, err
	}
	out := make(map[string]cloud.Instance, len(list))
	for _, in := range list {
		out[in.ID] = in
	}
	return out, nil
}

// Look implements eni.Lister.
func (o *observatory) Look(ctx context.Context, eniID string) ([]cloud.ENI, time.Time, error) {
	a, err := o.looks.ask(ctx, eniID, nil)
	if err != nil {
		return nil, a.at, fmt.Errorf("describe %s: %w", eniID, err)
	}
	return a.value, a.at, nil
}

// Subnets implements eni.Lister: one call describes all subnets of a VPC for all nodes.
func (o *observatory) Subnets(ctx context.Context, q placement.Query) (time.Time, error) {
	f := cloud.SubnetFilter{VPCID: q.VPCID}
	if q.VPCID == "" {
		f.IDs = q.IDs
	}
	return o.subnets.RefreshSince(ctx, f, q.Since)
}
