package blocks

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/ipam/block"
)

// workers is how many requests the operator works on at once, and how many make
// objects here.
const workers = 16

// ask makes n nodes and a request of each, as an administrator: a daemon may do it
// for its own node only.
func (r *run) ask(ctx context.Context, prefix string, n int) error {
	return objects.Each(ctx, n, workers, func(ctx context.Context, i int) error {
		n := &corev1.Node{}
		n.Name = nodeName(prefix, i)
		if err := r.lab.Kube.Client.Create(ctx, n); err != nil {
			return fmt.Errorf("make a Node: %w", err)
		}
		q := &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{
			Name:            poolName + "-" + n.Name + "-0",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
		}}
		q.Spec = v1alpha1.BlockRequestSpec{NodeName: n.Name, PoolName: poolName}
		if err := r.lab.Kube.Client.Create(ctx, q); err != nil {
			return fmt.Errorf("make a BlockRequest: %w", err)
		}
		return nil
	})
}

func nodeName(prefix string, i int) string { return fmt.Sprintf("%sbench-%05d", prefix, i) }

// operatorAccount is that of the chart.
var operatorAccount = types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}

// asOperator is a client with the rights of the operator, the only one who may
// make blocks.
func (r *run) asOperator(ctx context.Context) (client.Client, error) {
	token, err := r.lab.Kube.Token(ctx, operatorAccount, nil)
	if err != nil {
		return nil, err
	}
	return client.New(r.lab.Kube.ConfigWithToken(token), client.Options{Scheme: r.lab.Kube.Client.Scheme()})
}

// sample is how many requests are answered by bare writes at most.
const sample = 1000

// bare answers further requests by their two writes and nothing else, and
// returns how long that takes for as many as the run has.
func (r *run) bare(ctx context.Context) (time.Duration, error) {
	n := min(r.Nodes, sample)
	if err := r.ask(ctx, "bare-", n); err != nil {
		return 0, err
	}
	open, err := r.unanswered(ctx)
	if err != nil {
		return 0, err
	}
	p := &v1alpha1.AddressPool{}
	if err := r.lab.Kube.Client.Get(ctx, client.ObjectKey{Name: poolName}, p); err != nil {
		return 0, err
	}
	layout, err := block.Parse(blockSizeBits, []block.Subnet{{IPv4: netip.MustParsePrefix(subnet.IPv4), IPv6: netip.MustParsePrefix(subnet.IPv6)}})
	if err != nil {
		return 0, err
	}
	c, err := r.asOperator(ctx)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	err = objects.Each(ctx, len(open), workers, func(ctx context.Context, i int) error {
		return r.answer(ctx, c, p, layout, int64(r.Nodes+i), open[i])
	})
	return time.Since(begin) * time.Duration(r.Nodes) / time.Duration(n), err
}

func (r *run) unanswered(ctx context.Context) (open []*v1alpha1.BlockRequest, err error) {
	list := &v1alpha1.BlockRequestList{}
	if err := r.lab.Kube.Client.List(ctx, list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if q := &list.Items[i]; q.Status.AddressBlockName == "" {
			open = append(open, q)
		}
	}
	return open, nil
}

// answer makes a block for a request and completes it, with the objects as the
// operator writes them.
func (r *run) answer(ctx context.Context, c client.Client, p *v1alpha1.AddressPool, l block.Layout, index int64, q *v1alpha1.BlockRequest) error {
	piece, err := l.Block(index)
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
		IPv4: piece.IPv4.String(), IPv6: piece.IPv6.String(),
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
