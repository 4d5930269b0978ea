// Package objects moves Coil's objects in the Kubernetes API. Unlike package coil it needs no node.
//
//	cluster.go  the steps of a cluster
//	finish.go   the last step: what is left of Coil
//	egress.go   Egresses
//	api.go      requests to the API server
package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/migrate/manifests"
)

// Cluster moves Coil's objects. Pools and blocks are Berth's before the first node moves, and Coil's controllers stand
// still from then on: so no block is cut twice. Every step can be repeated.
type Cluster struct {
	API      rest.Interface
	Operator string // user name of berth-operator, from which alone the API server accepts AddressBlocks
	// Namespace has the Deployments of Coil's controllers.
	Namespace string
	Clock     clock.Clock
	// OriginatingOnly is coild's --enable-originating-only, which is a setting of each Egress with Berth.
	OriginatingOnly bool
	// Dump is what Coil v1 has in etcd; nil: Coil v2, whose objects are in the API server.
	Dump *etcd.Dump
}

// controllers are the Deployments of Coil's controllers, by version. They cut blocks, and make gateways.
var controllers = []string{"coil-controller", "coil-ipam-controller", "coil-controllers", "coil-egress-controller"}

const (
	// replicasKey is the annotation of a Deployment that remembers its replicas while it stands still.
	replicasKey = "migrate.berth.dev/replicas"
	// importedKey is the annotation of an AddressPool whose blocks were all created.
	importedKey = "migrate.berth.dev/imported-from"

	coilAPI  = "/apis/coil.cybozu.com/v2/"
	berthAPI = "/apis/berth.dev/v1alpha1/"

	coilPoolKey = "coil.cybozu.com/pool" // annotation of Namespaces
)

// Plan describes the objects, and changes nothing.
func (c *Cluster) Plan(ctx context.Context) (p migrate.Plan, err error) {
	p.From = migrate.Coil
	out, err := c.convert(ctx)
	if err != nil {
		return p, err
	}
	pools, blocks := 0, 0
	for _, o := range out.Objects {
		switch o.(type) {
		case *v1alpha1.AddressPool:
			pools++
		case *v1alpha1.AddressBlock:
			blocks++
		}
	}
	p.Found = []string{fmt.Sprintf("%d AddressPools and %d AddressBlocks of Coil", pools, blocks)}
	p.Steps = []migrate.Step{
		{Name: "objects", What: "stop Coil's controllers; create Berth's AddressPools, and AddressBlocks with the same indexes and nodes; annotate Namespaces"},
		{Name: "remove", What: "once all nodes are moved and finished, remove Coil's objects", Final: true},
	}
	for _, lost := range out.Lost {
		p.Obstacles = append(p.Obstacles, migrate.Obstacle{What: lost, Remedy: "see docs/guides/migrate/coil.md"})
	}
	err = egresses{c}.plan(ctx, &p)
	return p.Complete(), err
}

// Begin stops Coil's controllers and creates Berth's objects. It changes nothing that was done before.
func (c *Cluster) Begin(ctx context.Context) (changed []string, err error) {
	if changed, err = c.stop(ctx); err != nil {
		return changed, err
	}
	out, err := c.convert(ctx)
	if err != nil {
		return changed, err
	}
	for _, o := range out.Objects {
		p, ok := o.(*v1alpha1.AddressPool)
		if !ok {
			continue
		}
		did, err := c.importPool(ctx, p, out.Objects)
		if changed = append(changed, did...); err != nil {
			return changed, err
		}
	}
	did, err := c.annotate(ctx)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	did, err = egresses{c}.importAll(ctx)
	return append(changed, did...), err
}

// stop scales Coil's controllers to nothing, and waits until their pods are gone: until then they cut blocks and make gateways. The
// Deployment's own count leaves out pods that are being deleted.
func (c *Cluster) stop(ctx context.Context) (changed []string, err error) {
	for _, name := range controllers {
		path := controller(c.Namespace, name)
		for tries := 0; ; tries++ {
			d, err := c.get(ctx, path)
			if err != nil {
				return changed, err
			}
			if d == nil {
				break
			}
			if d.Spec.Replicas != 0 {
				patch := map[string]any{"metadata": map[string]any{"annotations": map[string]string{replicasKey: fmt.Sprint(d.Spec.Replicas)}}, "spec": map[string]any{"replicas": 0}}
				if err := c.patch(ctx, path, patch); err != nil {
					return changed, fmt.Errorf("stop Deployment %s/%s: %w", c.Namespace, name, err)
				}
				changed = append(changed, "stopped Deployment "+c.Namespace+"/"+name)
				continue
			}
			left, err := c.podsOf(ctx, d)
			if err != nil {
				return changed, err
			}
			if len(left) == 0 {
				break
			}
			if tries > 60 {
				return changed, fmt.Errorf("the pods %s of Deployment %s/%s do not end: if their machine is off, delete them with --force", strings.Join(left, ", "), c.Namespace, name)
			}
			select {
			case <-c.Clock.After(time.Second):
			case <-ctx.Done():
				return changed, context.Cause(ctx)
			}
		}
	}
	return changed, nil
}

// podsOf returns the names of a Deployment's pods that may still run.
func (c *Cluster) podsOf(ctx context.Context, d *object) (names []string, err error) {
	selector := metav1.FormatLabelSelector(&d.Spec.Selector)
	sets, err := c.list(ctx, "/apis/apps/v1/namespaces/"+c.Namespace+"/replicasets", "labelSelector", selector)
	if err != nil {
		return nil, err
	}
	sets = slices.DeleteFunc(sets, func(s object) bool { return !metav1.IsControlledBy(&s, d) })
	pods, err := c.list(ctx, "/api/v1/namespaces/"+c.Namespace+"/pods", "labelSelector", selector)
	for i := range pods {
		p := &pods[i]
		ours := slices.ContainsFunc(sets, func(s object) bool { return metav1.IsControlledBy(p, &s) })
		if ours && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			names = append(names, p.Name)
		}
	}
	return names, err
}

// start undoes stop.
func (c *Cluster) start(ctx context.Context) (changed []string, err error) {
	for _, name := range controllers {
		d, err := c.get(ctx, controller(c.Namespace, name))
		if err != nil {
			return changed, err
		}
		if d == nil || d.Annotations[replicasKey] == "" {
			continue
		}
		patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{replicasKey: nil}}, "spec": map[string]any{"replicas": json.RawMessage(d.Annotations[replicasKey])}}
		if err := c.patch(ctx, controller(c.Namespace, name), patch); err != nil {
			return changed, fmt.Errorf("start Deployment %s/%s: %w", c.Namespace, name, err)
		}
		changed = append(changed, "started Deployment "+c.Namespace+"/"+name)
	}
	return changed, nil
}

// controller is the path of the Deployment of a controller of Coil.
func controller(namespace, name string) string {
	return "/apis/apps/v1/namespaces/" + namespace + "/deployments/" + name
}

// convert returns Berth's objects for Coil's.
func (c *Cluster) convert(ctx context.Context) (out manifests.Output, err error) {
	var in manifests.Input
	paths := []string{"/api/v1/nodes", coilAPI + "addresspools", coilAPI + "addressblocks"}
	if c.Dump != nil {
		paths = paths[:1]
		text, err := c.Dump.Manifests()
		if err != nil {
			return out, err
		}
		if in.Objects, err = manifests.Read("etcd", bytes.NewReader(text)); err != nil {
			return out, err
		}
	}
	for _, path := range paths {
		docs, err := c.documents(ctx, path)
		if err != nil {
			return out, err
		}
		objects, err := manifests.Read(path, bytes.NewReader(docs))
		if err != nil {
			return out, err
		}
		in.Objects = append(in.Objects, objects...)
	}
	return manifests.Convert(in)
}

// importPool creates a pool and its blocks. It is done once: later the blocks are what Berth makes of them.
func (c *Cluster) importPool(ctx context.Context, p *v1alpha1.AddressPool, all []any) (changed []string, err error) {
	path := berthAPI + "addresspools/" + p.Name
	has, err := c.get(ctx, path)
	if err != nil || has != nil && has.Annotations[importedKey] != "" {
		return nil, err
	}
	if has == nil {
		made := p.DeepCopy()
		made.Finalizers = []string{v1alpha1.FinalizerPool} // a pool that is deleted below waits for its blocks
		if err := c.create(ctx, berthAPI+"addresspools", made, ""); err != nil {
			return changed, fmt.Errorf("create AddressPool %s: %w", p.Name, err)
		}
		changed = append(changed, "created AddressPool "+p.Name)
		if has, err = c.get(ctx, path); err != nil || has == nil {
			return changed, errors.Join(err, fmt.Errorf("AddressPool %s is gone", p.Name))
		}
	}
	if err := comparePools(p, has.raw); err != nil {
		return changed, err
	}
	did, err := c.importBlocks(ctx, p.Name, has.UID, all)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	did, err = c.deleteWhatCoilDeletes(ctx, p.Name, has.UID)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	return changed, c.patch(ctx, path, map[string]any{"metadata": map[string]any{"annotations": map[string]string{importedKey: migrate.Coil}}})
}

// comparePools returns an error if the pool that exists does not have what Coil's pool has.
func comparePools(p *v1alpha1.AddressPool, existing []byte) error {
	var now v1alpha1.AddressPool
	if err := json.Unmarshal(existing, &now); err != nil {
		return fmt.Errorf("read AddressPool %s: %w", p.Name, err)
	}
	if n := len(p.Spec.Subnets); len(now.Spec.Subnets) < n || !slices.Equal(now.Spec.Subnets[:n], p.Spec.Subnets) || bits(&now) != bits(p) {
		return fmt.Errorf("AddressPool %s exists with other subnets or another block size than Coil's: delete it, or rename it", p.Name)
	}
	for _, r := range p.Spec.Reserved {
		if !slices.Contains(now.Spec.Reserved, r) {
			return fmt.Errorf("AddressPool %s exists, and its spec.reserved lacks %s, which Coil reserves or a machine without a Node may use: add it", p.Name, r)
		}
	}
	return nil
}

// importBlocks creates the blocks of a pool.
func (c *Cluster) importBlocks(ctx context.Context, pool string, uid types.UID, all []any) (changed []string, err error) {
	for _, o := range all {
		b, ok := o.(*v1alpha1.AddressBlock)
		if !ok || b.PoolName != pool {
			continue
		}
		made := b.DeepCopy()
		yes := true
		made.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: pool, UID: uid, Controller: &yes, BlockOwnerDeletion: &yes,
		}}
		err := c.create(ctx, berthAPI+"addressblocks", made, c.Operator)
		if apierrors.IsAlreadyExists(err) { // by a begin that was killed; or Berth has cut it from a pool of the same name
			there, err := c.get(ctx, berthAPI+"addressblocks/"+b.Name)
			if err == nil && there != nil {
				err = ofPool(there, pool, uid)
			}
			if err == nil && (there == nil || there.NodeName != b.NodeName) {
				err = fmt.Errorf("AddressBlock %s exists, and not for Node %s, which has the block with Coil: pods of two nodes would get its addresses; delete it", b.Name, b.NodeName)
			}
			if err != nil {
				return changed, err
			}
			continue
		}
		if err != nil {
			return changed, fmt.Errorf("create AddressBlock %s as %s: %w", b.Name, c.Operator, err)
		}
		changed = append(changed, fmt.Sprintf("created AddressBlock %s of node %s", b.Name, b.NodeName))
	}
	return changed, nil
}

func bits(p *v1alpha1.AddressPool) int32 {
	if p.Spec.BlockSizeBits == nil {
		return v1alpha1.DefaultBlockSizeBits
	}
	return *p.Spec.BlockSizeBits
}

// deleteWhatCoilDeletes deletes the pool and its blocks if Coil's are being deleted: no pod gets an address of them, and
// they go with their last pod.
func (c *Cluster) deleteWhatCoilDeletes(ctx context.Context, pool string, uid types.UID) (changed []string, err error) {
	if c.Dump != nil {
		return nil, nil
	}
	blocks, err := c.list(ctx, coilAPI+"addressblocks")
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if b.DeletionTimestamp != nil && b.Labels[coilPoolKey] == pool {
			name := fmt.Sprintf("%s-%d", pool, b.Index)
			if err := c.deleteOwned(ctx, berthAPI+"addressblocks/"+name, pool, uid); err != nil {
				return changed, err
			}
			changed = append(changed, "deleted AddressBlock "+name+" as Coil's is")
		}
	}
	p, err := c.get(ctx, coilAPI+"addresspools/"+pool)
	if err != nil || p == nil || p.DeletionTimestamp == nil {
		return changed, err
	}
	berths := &object{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	return append(changed, "deleted AddressPool "+pool+" as Coil's is"), c.delete(ctx, berthAPI+"addresspools/"+pool, berths)
}

// deleteOwned deletes an object of a pool, if there is one.
func (c *Cluster) deleteOwned(ctx context.Context, path, pool string, uid types.UID) error {
	o, err := c.get(ctx, path)
	if err != nil || o == nil {
		return err
	}
	if err := ofPool(o, pool, uid); err != nil {
		return err
	}
	return c.delete(ctx, path, o)
}

// ofPool returns an error if a block belongs to an earlier pool of the same name.
func ofPool(block *object, pool string, uid types.UID) error {
	if owner := metav1.GetControllerOf(block); owner == nil || owner.UID != uid {
		return fmt.Errorf("AddressBlock %s exists, and does not belong to the present AddressPool %s: repeat the command once Kubernetes has deleted the block, or delete it", block.Name, pool)
	}
	return nil
}

// annotate gives Namespaces Berth's annotation beside Coil's.
func (c *Cluster) annotate(ctx context.Context) (changed []string, err error) {
	namespaces, err := c.list(ctx, "/api/v1/namespaces")
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		pool := ns.Annotations[coilPoolKey]
		if c.Dump != nil && ns.Name != v1alpha1.DefaultPool {
			if _, err := c.Dump.Pool(ns.Name); err == nil {
				pool = ns.Name
			}
		}
		if pool == "" || ns.Annotations[v1alpha1.AnnotationPool] == pool {
			continue
		}
		if err := c.patch(ctx, "/api/v1/namespaces/"+ns.Name, map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationPool: pool}}}); err != nil {
			return changed, fmt.Errorf("annotate Namespace %s: %w", ns.Name, err)
		}
		changed = append(changed, fmt.Sprintf("annotated Namespace %s with the pool %s", ns.Name, pool))
	}
	return changed, nil
}

// Back undoes Begin, once all nodes are Coil's again.
func (c *Cluster) Back(ctx context.Context) (changed []string, err error) {
	pools, err := c.list(ctx, berthAPI+"addresspools")
	if err != nil {
		return nil, err
	}
	imported := map[string]bool{}
	for _, p := range pools {
		imported[p.Name] = p.Annotations[importedKey] != ""
	}
	blocks, err := c.list(ctx, berthAPI+"addressblocks")
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if !imported[b.PoolName] {
			continue
		}
		if err := c.remove(ctx, berthAPI+"addressblocks/"+b.Name, &b); err != nil {
			return changed, err
		}
		changed = append(changed, "removed AddressBlock "+b.Name)
	}
	for _, p := range pools {
		if !imported[p.Name] {
			continue
		}
		if err := c.remove(ctx, berthAPI+"addresspools/"+p.Name, &p); err != nil {
			return changed, err
		}
		changed = append(changed, "removed AddressPool "+p.Name)
	}
	did, err := egresses{c}.back(ctx)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	did, err = c.start(ctx)
	return append(changed, did...), err
}
