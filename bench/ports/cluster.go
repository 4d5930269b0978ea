package ports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

// work runs the benchmark with api: it starts the operator and the nodes, creates the pods, waits
// until all of their PodNICs are Active, and stops everything.
func work(ctx context.Context, o Order, p *portfake.Provider, api *memapi.API, out *Outcome) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := createNodesAndVPC(ctx, o, api); err != nil {
		return err
	}
	c := &cluster{order: o, api: api, provider: p, bound: map[string]time.Duration{}, active: map[string]time.Duration{}}
	parts, ctx := bubble.NewParts(ctx)
	parts.Start("the operator", func(ctx context.Context) error { return operate(ctx, api, p) })
	parts.Start("the nodes", c.simulateDaemons)
	<-time.After(10 * time.Second) // until all watches are established
	at := bubble.CPU()
	c.began = time.Now()
	parts.Start("the scheduler", c.createPods)
	err = c.await(ctx)
	out.CPU = bubble.CPU() - at
	if o.AtRest && err == nil {
		<-time.After(time.Minute)
		c.peakHeap = bubble.LiveHeap()
	}
	cancel()
	err = errors.Join(parts.Wait(), err)
	c.report(out)
	return err
}

// createNodesAndVPC creates the Nodes and the VPC.
func createNodesAndVPC(ctx context.Context, o Order, api *memapi.API) error {
	all := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: vpcName}, Spec: vpcSpec()},
	}
	for i := range o.Nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		all = append(all, n)
	}
	for _, each := range all {
		if err := api.Create(ctx, each); err != nil {
			return fmt.Errorf("create %T %s: %w", each, each.GetName(), err)
		}
	}
	return nil
}

// cluster is a simulated cluster and the progress observed in it.
type cluster struct {
	order    Order
	api      *memapi.API
	provider *portfake.Provider
	began    time.Time

	mu        sync.Mutex // guards all below
	scheduled time.Duration
	bound     map[string]time.Duration // state by PodNIC
	active    map[string]time.Duration
	peakHeap  uint64
}

// createPods creates all pods at once and then schedules them at the rate of the order.
func (c *cluster) createPods(ctx context.Context) error {
	pods := make([]*corev1.Pod, c.order.Pods)
	err := objects.Each(ctx, len(pods), 8, func(ctx context.Context, i int) error {
		pods[i] = newPod(i)
		return c.api.Create(ctx, pods[i])
	})
	if err != nil {
		return err
	}
	<-time.After(c.order.Late)
	begin := time.Now()
	for i, p := range pods {
		if c.order.Scheduled > 0 {
			<-time.After(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(c.order.Scheduled))))
		}
		p.Spec.NodeName = nodeName(i % c.order.Nodes)
		if err := c.api.Update(ctx, p); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scheduled = time.Since(c.began)
	return nil
}

// newPod returns a pod with the fields that pods usually have.
func newPod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("web-%05d", i), Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{v1alpha1.AnnotationVPC: vpcName},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "web", Image: "registry.example/web:1", Env: []corev1.EnvVar{{Name: "PORT", Value: "80"}}}}
	p.Status.Phase = corev1.PodPending
	return p
}

// simulateDaemons plugs the ports that are bound to nodes and reports them, as each node's berthd does.
func (c *cluster) simulateDaemons(ctx context.Context) error {
	w, err := c.api.Watch(ctx, &v1alpha1.PodNICList{})
	if err != nil {
		return err
	}
	defer w.Stop()
	plugging, plugs := errgroup.WithContext(ctx)
	for {
		var e watch.Event
		select {
		case <-plugs.Done():
			return plugging.Wait()
		case e = <-w.ResultChan():
		}
		o, is := e.Object.(*v1alpha1.PodNIC)
		if is && c.observe(o) {
			plugging.Go(func() error { return c.plug(plugs, o) })
		}
	}
}

// observe records the progress of a PodNIC and reports whether its port has just been bound.
func (c *cluster) observe(o *v1alpha1.PodNIC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, was := c.bound[o.Name]
	is := o.Status.Plug != nil && o.Status.PortID != ""
	if is && !was {
		c.bound[o.Name] = time.Since(c.began)
	}
	if _, known := c.active[o.Name]; !known && o.Status.Phase == v1alpha1.PhaseActive {
		c.active[o.Name] = time.Since(c.began)
	}
	return is && !was
}

// plug plugs a port and reports it, as berthd does.
func (c *cluster) plug(ctx context.Context, o *v1alpha1.PodNIC) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(plugTime):
	}
	c.provider.Plug(o.Status.PortID, o.Status.NodeName)
	report := fmt.Appendf(nil, `{"status":{"node":{"state":%q,"portID":%q,"since":%q}}}`,
		v1alpha1.NodePlugged, o.Status.PortID, time.Now().UTC().Format(time.RFC3339))
	err := c.api.Status().Patch(ctx, o.DeepCopy(), client.RawPatch(client.Merge.Type(), report))
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("report that %s is plugged: %w", o.Name, err)
	}
	return nil
}

// await returns once all PodNICs are Active. It samples the heap at growing intervals.
func (c *cluster) await(ctx context.Context) error {
	nextSample := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			return fmt.Errorf("of %d PodNICs, %d are bound and %d are Active: %w", c.order.Pods, len(c.bound), len(c.active), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
		c.mu.Lock()
		n, since := len(c.active), time.Since(c.began)
		c.mu.Unlock()
		if !c.order.AtRest && (since >= nextSample || n == c.order.Pods) {
			c.peakHeap = max(c.peakHeap, bubble.LiveHeap())
			nextSample = since + max(since/4, 500*time.Millisecond)
		}
		if n == c.order.Pods {
			return nil
		}
	}
}

// report fills in the outcome.
func (c *cluster) report(out *Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Scheduled, out.Heap = c.scheduled, c.peakHeap
	out.Bound, out.Median = lastAndMedian(c.bound)
	out.Active, _ = lastAndMedian(c.active)
}

func lastAndMedian(of map[string]time.Duration) (last, median time.Duration) {
	var all []time.Duration
	for _, at := range of {
		all = append(all, at)
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)-1], all[(len(all)-1)/2]
}
