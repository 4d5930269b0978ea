package blocks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/ipam/block"
)

// workers is the number of the operator's workers, and of the workers that create objects here.
const workers = 16

// createRequests creates n nodes and a block request for each, as an administrator: a daemon may create
// one for its own node only.
func (r *run) createRequests(ctx context.Context, prefix string, n int) {
	must.OK(objects.Each(ctx, n, workers, func(ctx context.Context, i int) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%sbench-%05d", prefix, i)}}
		must.OK(r.kube.Client.Create(ctx, n))
		q := &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{
			Name:            poolName + "-" + n.Name + "-0",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
		}}
		q.Spec = v1alpha1.BlockRequestSpec{NodeName: n.Name, PoolName: poolName}
		return r.kube.Client.Create(ctx, q)
	}))
}

// operatorAccount is the operator's ServiceAccount in the chart.
var operatorAccount = types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}

// sample limits the requests that bare answers.
const sample = 1000

// bare answers further requests with their two writes and nothing else, with the operator's permissions,
// and returns the time extrapolated to the number of requests of the run.
func (r *run) bare(ctx context.Context) time.Duration {
	n := min(r.Nodes, sample)
	r.createRequests(ctx, "bare-", n)
	list, p := &v1alpha1.BlockRequestList{}, &v1alpha1.AddressPool{}
	must.OK(r.kube.Client.List(ctx, list))
	open := slices.DeleteFunc(list.Items, func(q v1alpha1.BlockRequest) bool { return q.Status.AddressBlockName != "" })
	must.OK(r.kube.Client.Get(ctx, client.ObjectKey{Name: poolName}, p))
	layout := must.Get(block.Parse(blockSizeBits, []block.Subnet{{IPv4: netip.MustParsePrefix(subnet.IPv4), IPv6: netip.MustParsePrefix(subnet.IPv6)}}))
	token := must.Get(r.kube.Token(ctx, operatorAccount, nil))
	c := must.Get(client.New(r.kube.ConfigWithToken(token), client.Options{Scheme: r.kube.Client.Scheme()}))
	g, ctx := errgroup.WithContext(ctx)
	listed := make(chan struct{})
	g.Go(func() (err error) {
		defer must.Catch(&err)
		r.waitUntilComplete(ctx, r.Nodes+n, nil, func(complete int) {
			if complete == r.Nodes {
				close(listed)
			}
		})
		return nil
	})
	select {
	case <-listed: // the time of the list would be extrapolated, too
	case <-ctx.Done():
	}
	begin := time.Now()
	g.Go(func() error {
		return objects.Each(ctx, len(open), workers, func(ctx context.Context, i int) error {
			return r.answer(ctx, c, p, layout, int64(r.Nodes+i), &open[i])
		})
	})
	must.OK(g.Wait())
	return time.Since(begin) * time.Duration(r.Nodes) / time.Duration(n)
}

// answer creates a block for a request and completes the request, with the objects that the operator
// writes.
func (*run) answer(ctx context.Context, c client.Client, p *v1alpha1.AddressPool, l block.Layout, index int64, q *v1alpha1.BlockRequest) error {
	addresses, err := l.Block(index)
	if err != nil {
		return err
	}
	b := &v1alpha1.AddressBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name:       fmt.Sprintf("%s-%d", p.Name, index),
			Labels:     map[string]string{v1alpha1.LabelPool: p.Name, v1alpha1.LabelNode: v1alpha1.NodeLabel(q.Spec.NodeName)},
			Finalizers: []string{v1alpha1.FinalizerBlock},
		},
		PoolName: p.Name, NodeName: q.Spec.NodeName, Index: index, RequestUID: q.UID,
		IPv4: addresses.IPv4.String(), IPv6: addresses.IPv6.String(),
	}
	if err := controllerutil.SetControllerReference(p, b, c.Scheme()); err != nil {
		return err
	}
	if err := c.Create(ctx, b, client.FieldOwner(v1alpha1.OwnerOperator)); err != nil {
		return err
	}
	before := q.DeepCopy()
	q.Status = v1alpha1.BlockRequestStatus{AddressBlockName: b.Name, Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: "BlockGiven",
		Message: "block " + b.Name, LastTransitionTime: metav1.Now(),
	}}}
	return c.Status().Patch(ctx, q, client.MergeFrom(before), client.FieldOwner(v1alpha1.OwnerOperator))
}
