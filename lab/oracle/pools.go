package oracle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// poolView is a snapshot of pools, blocks and requests in the API, and the inconsistencies found.
type poolView struct {
	pools    map[string]*v1alpha1.AddressPool
	blocks   []v1alpha1.AddressBlock
	requests []v1alpha1.BlockRequest
	nodes    map[string]bool // with a Node
	errs     []error
}

func (c *poolView) wrong(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// ofNode returns the blocks of a node.
func (c *poolView) ofNode(name string) (blocks []v1alpha1.AddressBlock) {
	for _, b := range c.blocks {
		if b.NodeName == name {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// viewPools reads pools, blocks and requests, and records inconsistencies: a block that does not match its pool and
// index, that overlaps another, or that is leaked; wrong counts; any remaining request.
func viewPools(ctx context.Context, l *lab.Lab) (*poolView, error) {
	pools, nodes := &v1alpha1.AddressPoolList{}, &corev1.NodeList{}
	blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
	for _, list := range []client.ObjectList{pools, nodes, blocks, requests} {
		if err := l.Kube.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	c := &poolView{pools: map[string]*v1alpha1.AddressPool{}, blocks: blocks.Items, requests: requests.Items, nodes: map[string]bool{}}
	for i := range pools.Items {
		c.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	for _, n := range nodes.Items {
		c.nodes[n.Name] = true
	}
	for _, r := range c.requests {
		c.wrong("BlockRequest %s of %s for pool %s is left over: %+v", r.Name, r.Spec.NodeName, r.Spec.PoolName, r.Status)
	}
	held := map[string]int64{}
	for i := range c.blocks {
		b := &c.blocks[i]
		held[b.PoolName]++
		if err := c.sound(b); err != nil {
			c.wrong("AddressBlock %s: %w", b.Name, err)
		}
		if _, err := l.Node(b.NodeName); err != nil && !c.nodes[b.NodeName] {
			c.wrong("AddressBlock %s is leaked: node %s is gone", b.Name, b.NodeName)
		}
	}
	c.disjoint()
	for name, p := range c.pools {
		s := p.Status.Blocks
		if s.Allocated != held[name] || s.Free != s.Total-s.Allocated {
			c.wrong("AddressPool %s: status counts %+v, but %d blocks exist", name, s, held[name])
		}
	}
	return c, nil
}

// sound compares a block with its pool.
func (c *poolView) sound(b *v1alpha1.AddressBlock) error {
	p := c.pools[b.PoolName]
	if p == nil {
		return fmt.Errorf("its pool %s is gone", b.PoolName)
	}
	layout, err := layoutOf(p)
	if err != nil {
		return err
	}
	want, err := layout.Block(b.Index)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range []struct {
		what, got, want string
	}{
		{"name", b.Name, fmt.Sprintf("%s-%d", b.PoolName, b.Index)},
		{"ipv4", b.IPv4, text(want.IPv4)},
		{"ipv6", b.IPv6, text(want.IPv6)},
		{"label " + v1alpha1.LabelPool, b.Labels[v1alpha1.LabelPool], b.PoolName},
		{"label " + v1alpha1.LabelNode, b.Labels[v1alpha1.LabelNode], v1alpha1.NodeLabel(b.NodeName)},
	} {
		if f.got != f.want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", f.what, f.got, f.want))
		}
	}
	if len(b.OwnerReferences) != 1 || b.OwnerReferences[0].UID != p.UID {
		errs = append(errs, fmt.Errorf("owners %+v, want the pool", b.OwnerReferences))
	}
	if !slices.Contains(b.Finalizers, v1alpha1.FinalizerBlock) {
		errs = append(errs, fmt.Errorf("finalizers %v", b.Finalizers))
	}
	return errors.Join(errs...)
}

// layoutOf returns the layout of the accepted subnets of a pool.
func layoutOf(p *v1alpha1.AddressPool) (block.Layout, error) {
	bits := int32(v1alpha1.DefaultBlockSizeBits)
	if p.Spec.BlockSizeBits != nil {
		bits = *p.Spec.BlockSizeBits
	}
	var subnets []block.Subnet
	for _, s := range p.Spec.Subnets[:min(int(p.Status.AcceptedSubnets), len(p.Spec.Subnets))] {
		v4, err4 := lab.CIDR(s.IPv4)
		v6, err6 := lab.CIDR(s.IPv6)
		if err := errors.Join(err4, err6); err != nil {
			return block.Layout{}, err
		}
		subnets = append(subnets, block.Subnet{IPv4: v4, IPv6: v6})
	}
	return block.Parse(int(bits), subnets)
}

func text(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// disjoint looks for overlapping blocks.
func (c *poolView) disjoint() {
	type piece struct {
		netip.Prefix
		block string
	}
	var all []piece
	for i := range c.blocks {
		for _, p := range lab.BlockCIDRs(&c.blocks[i]) {
			all = append(all, piece{p, c.blocks[i].Name})
		}
	}
	slices.SortFunc(all, func(a, b piece) int { return a.Addr().Compare(b.Addr()) })
	for i := 1; i < len(all); i++ {
		if all[i-1].Overlaps(all[i].Prefix) {
			c.wrong("AddressBlocks %s and %s overlap: %s, %s", all[i-1].block, all[i].block, all[i-1].Prefix, all[i].Prefix)
		}
	}
}

// announced compares the routes that the router has learned by BGP with the blocks of the running nodes.
func announced(ctx context.Context, l *lab.Lab, c *poolView) []error {
	got, err := l.Site.Routes(ctx)
	if err != nil {
		return []error{err}
	}
	want := map[netip.Prefix]netip.Addr{}
	for i := range c.blocks {
		if _, err := l.Node(c.blocks[i].NodeName); err != nil {
			continue
		}
		own := l.Site.Addrs(c.blocks[i].NodeName)
		for _, p := range lab.BlockCIDRs(&c.blocks[i]) {
			want[p] = own.IPv4
			if p.Addr().Is6() {
				want[p] = own.IPv6
			}
		}
	}
	if maps.Equal(got, want) {
		return nil
	}
	return []error{fmt.Errorf("the router has routes %v, nodes have blocks %v", got, want)}
}

// checkExport compares the node's export table with its blocks.
func (f *findings) checkExport(k kernelState) {
	want := map[netip.Prefix]bool{}
	for i := range f.blocks {
		for _, p := range lab.BlockCIDRs(&f.blocks[i]) {
			want[p] = true
		}
	}
	if !maps.Equal(k.exported, want) {
		f.wrong("its export table has %v, its blocks are %v", slices.Collect(maps.Keys(k.exported)), slices.Collect(maps.Keys(want)))
	}
	if !maps.Equal(k.unreachable, want) {
		f.wrong("it has unreachable routes to %v, its blocks are %v", slices.Collect(maps.Keys(k.unreachable)), slices.Collect(maps.Keys(want)))
	}
}

// inBlock reports whether one of the node's blocks contains an address.
func (f *findings) inBlock(a netip.Addr) bool {
	return slices.ContainsFunc(f.blocks, func(b v1alpha1.AddressBlock) bool { return lab.InBlock(&b, a) })
}

// checkPools compares introspection with the node's blocks.
func (f *findings) checkPools(doc introspect.Document, held map[netip.Addr]*node.Pod) {
	t := doc.Totals
	known := t.Allocated + t.Available + t.Cooling + t.NotReady + t.Withdrawn
	size := 0
	for i := range f.blocks {
		if p := lab.BlockCIDRs(&f.blocks[i]); len(p) > 0 {
			size += 1 << (p[0].Addr().BitLen() - p[0].Bits())
		}
	}
	if known != size {
		f.wrong("introspection: %d addresses in all (%+v), its blocks have %d", known, t, size)
	}
	for _, a := range doc.Allocated {
		if !slices.ContainsFunc(f.blocks, func(b v1alpha1.AddressBlock) bool { return b.Name == a.Block && b.PoolName == a.Pool }) {
			f.wrong("introspection: %s is of block %q of pool %q, which the node does not have", a.Address, a.Block, a.Pool)
		}
		if p := held[a.Address]; p != nil && a.IPv6.IsValid() && held[a.IPv6] != p {
			f.wrong("introspection: %s and %s are of different pods", a.Address, a.IPv6)
		}
	}
}
