package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// Pool makes an AddressPool of blocks of 2^bits addresses.
func Pool(name string, bits int32, subnets ...v1alpha1.PoolSubnet) v1alpha1.AddressPool {
	return v1alpha1.AddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AddressPoolSpec{BlockSizeBits: &bits, Subnets: subnets},
	}
}

// DefaultPools is one pool of both families, whose blocks hold eight pods.
func DefaultPools() []v1alpha1.AddressPool {
	return []v1alpha1.AddressPool{
		Pool(v1alpha1.DefaultPool, 3, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16", IPv6: "fd02::/112"}),
	}
}

// raiseSite raises a lab in pool mode.
func (b builder) raiseSite(ctx context.Context) error {
	l := b.lab
	var err error
	if l.Site, err = site.New(site.Options{ID: l.ID, Dir: filepath.Join(l.Dir, "log")}); err != nil {
		return err
	}
	l.Progress(fmt.Sprintf("a data centre whose router and nodes run BIRD; a host outside, %s and %s", site.OutsideHost, site.OutsideHost6))
	e, err := echo.Serve(l.Site.OutsidePath())
	if err != nil {
		return err
	}
	l.services = append(l.services, e)
	if l.Kubelets != nil {
		return b.raiseCluster(ctx, b.addHosts)
	}
	if err := b.raiseKube(ctx); err != nil {
		return err
	}
	if err := l.Kube.createPools(ctx, l.Pools); err != nil {
		return err
	}
	if err := b.addHosts(); err != nil {
		return err
	}
	return b.settle(ctx)
}

// addHosts adds the nodes that the lab begins with.
func (b builder) addHosts() error {
	l := b.lab
	for i := range l.Options.Nodes {
		if _, err := l.AddNode(fmt.Sprintf("node-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// createPools creates the pools that are missing, DefaultPools if pools is nil.
func (c *Cluster) createPools(ctx context.Context, pools []v1alpha1.AddressPool) error {
	if pools == nil {
		pools = DefaultPools()
	}
	for _, p := range pools {
		if err := settledPolicies(ctx, func() error { return client.IgnoreAlreadyExists(c.Client.Create(ctx, p.DeepCopy())) }); err != nil {
			return fmt.Errorf("create AddressPool %s: %w", p.Name, err)
		}
	}
	return nil
}

// settledPolicies retries a write to a pool while the API server is unavailable or, as after a restart, has not read the
// admission policies yet. It gives up when ctx ends.
func settledPolicies(ctx context.Context, write func() error) error {
	return poll.Retry(ctx, write, func(err error) bool {
		return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || kube.Unavailable(err)
	})
}

// Blocks lists all AddressBlocks.
func (c *Cluster) Blocks(ctx context.Context) ([]v1alpha1.AddressBlock, error) {
	list := &v1alpha1.AddressBlockList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list AddressBlocks: %w", err)
	}
	return list.Items, nil
}

// AddressPool reads a pool.
func (c *Cluster) AddressPool(ctx context.Context, name string) (*v1alpha1.AddressPool, error) {
	return read[v1alpha1.AddressPool](ctx, c, "AddressPool", client.ObjectKey{Name: name})
}

// EditAddressPool changes a pool as a person does with kubectl edit.
func (c *Cluster) EditAddressPool(ctx context.Context, name string, change func(*v1alpha1.AddressPool)) error {
	return settledPolicies(ctx, func() error { return edit(ctx, c, "AddressPool", client.ObjectKey{Name: name}, change) })
}

// CreateNamespace makes a namespace with annotations.
func (c *Cluster) CreateNamespace(ctx context.Context, name string, annotations map[string]string) error {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	if err := c.Client.Create(ctx, n); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// AddNode adds a node to a lab in pool or port mode: its machine, its BIRD, its Node and, unless the caller starts
// daemons, its daemon.
func (l *Lab) AddNode(name string) (*node.Node, error) {
	if err := l.machines.mayName(name); err != nil {
		return nil, err
	}
	addrs, err := l.Site.AddNode(name)
	if err != nil {
		return nil, err
	}
	m, err := l.machines.create(name, "", l.Site.NodePath(name), hostNode(name))
	if err != nil {
		return nil, errors.Join(err, l.Site.RemoveNode(name))
	}
	if err := l.machines.boot(m, fmt.Sprintf("node %s has %s and %s", name, addrs.IPv4, addrs.IPv6)); err != nil {
		return nil, err
	}
	return m.Node, nil
}

func hostNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
}

// RemoveNode powers a node off for good. Its Node becomes not ready, and remains until RemoveNodeObject.
func (l *Lab) RemoveNode(name string) error {
	err := l.LoseNode(name)
	l.Kube.NodeLost(name)
	return err
}

// LoseNode powers a node off for good. Its Node and Pods do not change until Cluster.NodeLost.
func (l *Lab) LoseNode(name string) error {
	m := l.machines.remove(name)
	if m == nil {
		return fmt.Errorf("no node %q", name)
	}
	return errors.Join(m.PowerOff(), l.Site.RemoveNode(name), m.Scrap())
}

// RemoveNodeObject deletes a Node, as an administrator does, and its Pods if the machine is gone.
func (l *Lab) RemoveNodeObject(ctx context.Context, name string) error {
	if _, err := l.Node(name); err != nil {
		return l.Kube.nodes.unregister(ctx, name)
	}
	return client.IgnoreNotFound(l.Kube.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// CIDR parses a CIDR of an object. It returns the zero Prefix for an empty string.
func CIDR(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	return netip.ParsePrefix(s)
}

// BlockCIDRs returns the valid CIDRs of a block.
func BlockCIDRs(b *v1alpha1.AddressBlock) (out []netip.Prefix) {
	for _, s := range []string{b.IPv4, b.IPv6} {
		if p, err := CIDR(s); err == nil && p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// InBlock reports whether a block contains an address.
func InBlock(b *v1alpha1.AddressBlock, a netip.Addr) bool {
	return slices.ContainsFunc(BlockCIDRs(b), func(p netip.Prefix) bool { return p.Contains(a) })
}
