package blocks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/addresspool"
)

// FullOrder is a run in virtual time: nodes that join one after the other, each with a request, a cluster whose nodes have
// blocks already.
type FullOrder struct{ Nodes, BlocksOfNode, Joining int }

// Full is what such a run measured of the operator's controllers, with the Kubernetes API in memory.
type Full struct {
	CPU  time.Duration // for all requests, including the API
	Heap uint64        // with all blocks, without the API
}

// FullJob is this kind of run.
var FullJob = bubble.Job[FullOrder, Full]{Name: "pool", Do: runFull}

const (
	fullSubnet = "10.0.0.0/8"
	fullBits   = 4
	every      = 10 * time.Millisecond // from one request to the next
)

// fullRun is the state of a run.
type fullRun struct {
	FullOrder
	api    *memapi.API
	layout block.Layout
}

func runFull(ctx context.Context, o FullOrder) (out Full, err error) {
	r := &fullRun{FullOrder: o}
	if r.layout, err = block.Parse(fullBits, []block.Subnet{{IPv4: netip.MustParsePrefix(fullSubnet)}}); err != nil {
		return out, err
	}
	r.api, err = memapi.New(
		memapi.Kind{Object: &v1alpha1.AddressPool{}, Cluster: true, Status: true}, memapi.Kind{Object: &v1alpha1.AddressBlock{}, Cluster: true, Status: true},
		memapi.Kind{Object: &v1alpha1.BlockRequest{}, Cluster: true, Status: true}, memapi.Kind{Object: &networkingv1.ServiceCIDR{}, Cluster: true},
		memapi.Kind{Object: &corev1.Node{}, Cluster: true, Status: true}, memapi.Kind{Object: &corev1.Pod{}, Status: true},
	)
	if err = errors.Join(err, r.load()); err != nil {
		return out, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, ctx := bubble.NewParts(ctx)
	parts.Start("the operator", r.operate)
	<-time.After(time.Minute)
	out.Heap = bubble.LiveHeap()
	at := bubble.CPU()
	err = r.join(ctx)
	out.CPU = bubble.CPU() - at
	cancel()
	err = errors.Join(parts.Wait(), err)
	out.Heap -= min(out.Heap, bubble.LiveHeap()) // the operator has stopped
	return out, errors.Join(err, r.check(context.WithoutCancel(ctx)))
}

// load creates the pool, the nodes and their blocks.
func (r *fullRun) load() error {
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: poolName, Finalizers: []string{v1alpha1.FinalizerPool}}}
	p.Spec.BlockSizeBits, p.Spec.Subnets = new(int32(fullBits)), []v1alpha1.PoolSubnet{{IPv4: fullSubnet}}
	p.Status.AcceptedSubnets = 1
	err := r.api.Load(p)
	for i := range r.Nodes {
		name := fmt.Sprintf("node-%05d", i)
		err = errors.Join(err, r.api.Load(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		for j := range r.BlocksOfNode {
			index := int64(i*r.BlocksOfNode + j)
			addresses, failed := r.layout.Block(index)
			err = errors.Join(err, failed, r.api.Load(&v1alpha1.AddressBlock{
				ObjectMeta: metav1.ObjectMeta{
					Name:   fmt.Sprintf("%s-%d", poolName, index),
					Labels: map[string]string{v1alpha1.LabelPool: poolName, v1alpha1.LabelNode: v1alpha1.NodeLabel(name)}, Finalizers: []string{v1alpha1.FinalizerBlock},
				},
				PoolName: poolName, NodeName: name, Index: index, IPv4: addresses.IPv4.String(), RequestUID: types.UID(fmt.Sprintf("%08x-0000-4000-9000-000000000000", index)),
			}))
		}
	}
	return err
}

// operate runs the controllers until ctx ends.
func (r *fullRun) operate(ctx context.Context) error {
	noIndex := func(context.Context, client.FieldIndexer) error { return nil } // Setup adds them
	return memapi.Operate(ctx, r.api, addresspool.Watches(), noIndex, func(mgr manager.Manager) error {
		_, err := addresspool.Setup(ctx, mgr, addresspool.Options{MaxPods: 110})
		return err
	})
}

// join adds the joining nodes, each with a request.
func (r *fullRun) join(ctx context.Context) error {
	for i := range r.Joining {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("joining-%05d", i)}}
		q := &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: poolName + "-" + n.Name + "-0"}, Spec: v1alpha1.BlockRequestSpec{NodeName: n.Name, PoolName: poolName}}
		if err := errors.Join(r.api.Create(ctx, n), r.api.Create(ctx, q)); err != nil {
			return err
		}
		<-time.After(every)
	}
	<-time.After(10 * time.Second)
	return nil
}

// check verifies that each request has a block.
func (r *fullRun) check(ctx context.Context) error {
	all := &v1alpha1.BlockRequestList{}
	if err := r.api.List(ctx, all); err != nil {
		return err
	}
	for _, q := range all.Items {
		if !meta.IsStatusConditionTrue(q.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("request %s has no block: %+v", q.Name, q.Status)
		}
	}
	if len(all.Items) != r.Joining {
		return fmt.Errorf("%d requests, expected %d", len(all.Items), r.Joining)
	}
	return nil
}
