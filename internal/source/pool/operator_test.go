package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/test/harness"
)

// operator answers BlockRequests as the true one does, without its haste: it
// looks at everything again and again.
type operator struct {
	t    *testing.T
	api  client.Client
	stop func()

	mu     sync.Mutex                    // guards all below
	made   map[string]map[types.UID]bool // requests that have a block, by pool
	asked  map[types.UID]bool            // all requests that were seen
	next   map[string]int64
	slowly int // make so many blocks, then no more; negative: all
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	cfg := harness.ControlPlane.Config()
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:berth-operator", Groups: []string{"system:masters"}}
	return &operator{t: t, api: harness.KubeClientFor(t, cfg), made: map[string]map[types.UID]bool{}, asked: map[types.UID]bool{}, next: map[string]int64{}, slowly: -1}
}

// startOperator answers until the test ends.
func (m *machine) startOperator() *operator {
	m.t.Helper()
	o := newOperator(m.t)
	o.start()
	return o
}

func (o *operator) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := o.answerAll(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
				o.t.Log("operator:", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	o.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	o.t.Cleanup(o.stop)
}

func (o *operator) answerAll(ctx context.Context) error {
	list := &v1alpha1.BlockRequestList{}
	if err := o.api.List(ctx, list); err != nil {
		return err
	}
	slices.SortFunc(list.Items, func(x, y v1alpha1.BlockRequest) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	for i := range list.Items {
		r := &list.Items[i]
		o.mu.Lock()
		o.asked[r.UID] = true
		silent := o.slowly == 0
		o.mu.Unlock()
		if meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) || silent {
			continue
		}
		if err := o.answer(ctx, r); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func (o *operator) answer(ctx context.Context, r *v1alpha1.BlockRequest) error {
	name, err := o.cut(ctx, r)
	if err != nil && !errors.Is(err, errExhausted) {
		return err
	}
	condition := metav1.Condition{Type: v1alpha1.ConditionComplete, Status: "True", Reason: "Cut", Message: "here it is"}
	if err != nil {
		condition = metav1.Condition{Type: v1alpha1.ConditionFailed, Status: "True", Reason: v1alpha1.ReasonPoolExhausted, Message: err.Error()}
	}
	if !meta.SetStatusCondition(&r.Status.Conditions, condition) {
		return nil
	}
	r.Status.AddressBlockName = name
	return o.api.Status().Update(ctx, r)
}

// cut finds or makes the block of a request.
func (o *operator) cut(ctx context.Context, r *v1alpha1.BlockRequest) (string, error) {
	blocks := &v1alpha1.AddressBlockList{}
	if err := o.api.List(ctx, blocks); err != nil {
		return "", err
	}
	taken := map[int64]bool{}
	for _, b := range blocks.Items {
		if b.RequestUID == r.UID { // the answer failed, or only its reply or that to the block did
			o.mu.Lock()
			defer o.mu.Unlock()
			o.count(r)
			return b.Name, nil
		}
		if b.PoolName == r.Spec.PoolName {
			taken[b.Index] = true
		}
	}
	p := &v1alpha1.AddressPool{}
	if err := o.api.Get(ctx, client.ObjectKey{Name: r.Spec.PoolName}, p); err != nil {
		return "", err
	}
	l, err := layoutOf(p)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for range l.Blocks() {
		index := o.next[p.Name] % l.Blocks()
		if !taken[index] {
			return o.make(ctx, r, p, l, index)
		}
		o.next[p.Name] = index + 1
	}
	return "", fmt.Errorf("%w: all %d blocks of pool %s are taken", errExhausted, l.Blocks(), p.Name)
}

var errExhausted = errors.New("no block is free")

func (o *operator) make(ctx context.Context, r *v1alpha1.BlockRequest, p *v1alpha1.AddressPool, l block.Layout, index int64) (string, error) {
	cut, err := l.Block(index)
	if err != nil {
		return "", err
	}
	yes := true
	b := &v1alpha1.AddressBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", p.Name, index), Finalizers: []string{v1alpha1.FinalizerBlock},
			Labels: map[string]string{v1alpha1.LabelPool: p.Name, v1alpha1.LabelNode: v1alpha1.NodeLabel(r.Spec.NodeName)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: p.Name, UID: p.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		PoolName: p.Name, NodeName: r.Spec.NodeName, Index: index, RequestUID: r.UID,
	}
	if cut.IPv4.IsValid() {
		b.IPv4 = cut.IPv4.String()
	}
	if cut.IPv6.IsValid() {
		b.IPv6 = cut.IPv6.String()
	}
	if err := o.api.Create(ctx, b); err != nil {
		return "", err
	}
	o.next[p.Name] = index + 1
	o.count(r)
	return b.Name, nil
}

// count notes that a request has a block. o.mu is held.
func (o *operator) count(r *v1alpha1.BlockRequest) {
	made := o.made[r.Spec.PoolName]
	if made == nil {
		made = map[types.UID]bool{}
		o.made[r.Spec.PoolName] = made
	}
	if !made[r.UID] && o.slowly > 0 {
		o.slowly--
	}
	made[r.UID] = true
}

func layoutOf(p *v1alpha1.AddressPool) (block.Layout, error) {
	var subnets []block.Subnet
	for _, s := range p.Spec.Subnets {
		var sub block.Subnet
		if s.IPv4 != "" {
			sub.IPv4 = netip.MustParsePrefix(s.IPv4)
		}
		if s.IPv6 != "" {
			sub.IPv6 = netip.MustParsePrefix(s.IPv6)
		}
		subnets = append(subnets, sub)
	}
	return block.Parse(int(*p.Spec.BlockSizeBits), subnets)
}

// counts tells how many blocks of a pool were made, and requests seen.
func (o *operator) counts(pool string) (made, asked int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.made[pool]), len(o.asked)
}

// follow takes over the books of an operator that has stopped.
func (o *operator) follow(before *operator) {
	o.made, o.asked, o.next = before.made, before.asked, before.next
}

// answerOnly lets it make so many blocks more, then none; negative: all.
func (o *operator) answerOnly(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.slowly = n
}
