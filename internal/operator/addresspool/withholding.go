package addresspool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// addressesEvery is how often a node may get others at most: each change may have as
// many blocks written as it has addresses.
const addressesEvery = 10 * time.Second

// The owners of withheld addresses begin with these, and a name follows.
const (
	ownerNode     = "Node "
	ownerServices = "ServiceCIDR "
)

// occupied is which addresses Nodes and Services have. A change of one node costs
// work for its own addresses alone.
type occupied struct {
	mu     sync.Mutex              // guards all below
	nodes  map[string]nodeState    // by name
	owners map[netip.Addr][]string // names of nodes, in order
	sorted []netip.Addr            // the keys of owners
	ranges []ownedRange            // of Services
	unread bool                    // the last attempt to read ranges failed
}

type nodeState struct {
	addresses []netip.Addr
	changed   time.Time
}

func newOccupied() *occupied {
	return &occupied{nodes: map[string]nodeState{}, owners: map[netip.Addr][]string{}}
}

// set takes a node's addresses, and returns those that it has got or lost.
// o.mu is held.
func (o *occupied) set(node string, addresses []netip.Addr, now time.Time) (changed []netip.Addr) {
	before := o.nodes[node].addresses
	for _, a := range before {
		if !slices.Contains(addresses, a) {
			o.remove(node, a)
			changed = append(changed, a)
		}
	}
	for _, a := range addresses {
		if !slices.Contains(before, a) {
			o.add(node, a)
			changed = append(changed, a)
		}
	}
	o.nodes[node] = nodeState{addresses, now}
	return changed
}

// wait is how long it is until a node may have these addresses. It may lose some at
// any time. o.mu is held.
func (o *occupied) wait(node string, addresses []netip.Addr, now time.Time) time.Duration {
	had := o.nodes[node]
	if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(had.addresses, a) }) {
		return 0
	}
	return max(0, had.changed.Add(addressesEvery).Sub(now))
}

func (o *occupied) add(node string, a netip.Addr) {
	names := o.owners[a]
	if len(names) == 0 {
		i, _ := slices.BinarySearchFunc(o.sorted, a, netip.Addr.Compare)
		o.sorted = slices.Insert(o.sorted, i, a)
	}
	i, _ := slices.BinarySearch(names, node)
	o.owners[a] = slices.Insert(names, i, node)
}

func (o *occupied) remove(node string, a netip.Addr) {
	names := slices.DeleteFunc(o.owners[a], func(n string) bool { return n == node })
	if o.owners[a] = names; len(names) > 0 {
		return
	}
	delete(o.owners, a)
	if i, ok := slices.BinarySearchFunc(o.sorted, a, netip.Addr.Compare); ok {
		o.sorted = slices.Delete(o.sorted, i, i+1)
	}
}

// within are the addresses that others have in some prefixes, those of Services first.
func (o *occupied) within(prefixes ...netip.Prefix) (out []ownedRange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.ranges {
		if slices.ContainsFunc(prefixes, r.Overlaps) {
			out = append(out, r)
		}
	}
	for _, p := range prefixes {
		first := sort.Search(len(o.sorted), func(i int) bool { return p.Addr().Compare(o.sorted[i]) <= 0 })
		for _, a := range o.sorted[first:] {
			if !p.Contains(a) {
				break
			}
			out = append(out, ownedRange{Prefix: netip.PrefixFrom(a, a.BitLen()), other: ownerNode + o.owners[a][0]})
		}
	}
	return out
}

// withheldOf are the addresses of a block that others have.
func (o *occupied) withheldOf(b block.Block) []v1alpha1.WithheldAddresses {
	var prefixes []netip.Prefix
	for _, p := range [...]netip.Prefix{b.IPv4, b.IPv6} {
		if p.IsValid() {
			prefixes = append(prefixes, p)
		}
	}
	return withheld(b, o.within(prefixes...))
}

// services are the ranges of Services.
func (o *occupied) services() []ownedRange {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ranges
}

// occupy takes the addresses of a node as the cache has it, and tells when to look
// again. A Node that is missing keeps its addresses while it has blocks: its machine
// may live.
func (c *Controller) occupy(ctx context.Context, name string) (time.Duration, error) {
	c.occupied.mu.Lock()
	changed, wait, err := c.readAddresses(ctx, name)
	c.occupied.mu.Unlock()
	for _, a := range changed {
		for _, s := range c.book.find(a) {
			c.blocks.Add(blockName(s.pool, s.index))
			c.pools.Add(s.pool)
		}
	}
	return wait, err
}

// readAddresses is occupy, with the lock: so that no older state overwrites a newer one.
func (c *Controller) readAddresses(ctx context.Context, name string) (changed []netip.Addr, wait time.Duration, err error) {
	n, blocks, now := &corev1.Node{}, &v1alpha1.AddressBlockList{}, c.now()
	err = c.client.Get(ctx, client.ObjectKey{Name: name}, n, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, 0, fmt.Errorf("read Node %s from the cache: %w", name, err)
	}
	had, known := c.occupied.nodes[name]
	gone := err != nil
	if gone {
		if !known {
			return nil, 0, nil
		}
		if err := c.client.List(ctx, blocks, client.MatchingFields{byNode: name}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, 0, fmt.Errorf("list blocks of %s: %w", name, err)
		}
		if len(blocks.Items) > 0 {
			return nil, 0, nil
		}
	}
	addresses := nodeAddresses(n)
	if gone {
		defer delete(c.occupied.nodes, name)
	}
	if slices.Equal(had.addresses, addresses) {
		return nil, 0, nil
	}
	if wait := c.occupied.wait(name, addresses, now); wait > 0 {
		return nil, wait, nil
	}
	return c.occupied.set(name, addresses, now), 0, nil
}

// readOccupied reads what others have, before the first block is cut.
func (c *Controller) readOccupied(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := c.client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		_, err := c.occupy(ctx, nodes.Items[i].Name)
		errs = append(errs, err)
	}
	c.readServices(ctx)
	return errors.Join(errs...)
}

// readServices reads the ranges of Services. If that fails, those that were read before
// stay. Not ok: subnets must not be accepted. API servers before Kubernetes 1.33 have no
// ServiceCIDRs: then no range is known.
func (c *Controller) readServices(ctx context.Context) (ok bool) {
	list := &networkingv1.ServiceCIDRList{}
	err := c.live.List(ctx, list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		err = nil
	}
	forbidden := apierrors.IsForbidden(err)
	c.occupied.mu.Lock()
	defer c.occupied.mu.Unlock()
	again := c.occupied.unread
	c.occupied.unread = err != nil
	switch {
	case err == nil:
		c.occupied.ranges = serviceRanges(list)
	case again: // it was logged
	case forbidden:
		c.o.Logger.Warn("ServiceCIDRs cannot be read, so that pools may overlap them: apply the operator's role", "error", err)
	default:
		c.o.Logger.Warn("ServiceCIDRs cannot be read: no subnet of a pool is accepted until they can", "error", err)
	}
	return err == nil || forbidden
}

// keepWithheld takes, when this operator begins to lead, what blocks say that others have and
// nobody else can tell: addresses of missing Nodes that have blocks, since their machines
// may live, and ranges of Services if these cannot be read.
func (c *Controller) keepWithheld(others []ownedRange, hasBlocks map[string]bool) {
	missing := map[string][]netip.Addr{}
	var ranges []ownedRange
	c.occupied.mu.Lock()
	defer c.occupied.mu.Unlock()
	for _, o := range others {
		node, isNode := strings.CutPrefix(o.other, ownerNode)
		_, known := c.occupied.nodes[node]
		switch {
		case strings.HasPrefix(o.other, ownerServices):
			ranges = append(ranges, o)
		case isNode && !known && hasBlocks[node]:
			missing[node] = append(missing[node], o.Addr())
		}
	}
	if c.occupied.unread && c.occupied.ranges == nil {
		c.occupied.ranges = ranges
	}
	for node, addresses := range missing {
		c.occupied.set(node, addresses, c.now())
		c.nodes.Add(node) // it may have come back, or lost its blocks, meanwhile
	}
}

// reconcileBlock writes to a block which of its addresses others have.
func (c *Controller) reconcileBlock(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.begun(ctx); err != nil {
		return reconcile.Result{}, err
	}
	b := &v1alpha1.AddressBlock{}
	err := c.client.Get(ctx, q.NamespacedName, b)
	if err != nil || b.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	others := c.occupied.withheldOf(piece(b))
	if slices.Equal(others, b.Withheld) {
		return reconcile.Result{}, nil
	}
	before := b.DeepCopy()
	b.Withheld = others
	if err := c.client.Patch(ctx, b, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("withhold addresses of AddressBlock %s: %w", b.Name, err)
	}
	c.o.Logger.Info("addresses of a block withheld", "block", b.Name, "node", b.NodeName, "before", before.Withheld, "now", others)
	return reconcile.Result{}, nil
}

// piece is what addresses a block has.
func piece(b *v1alpha1.AddressBlock) (out block.Block) {
	for _, c := range cidrs(b) {
		if c.Addr().Is4() {
			out.IPv4 = c
		} else {
			out.IPv6 = c
		}
	}
	return out
}
