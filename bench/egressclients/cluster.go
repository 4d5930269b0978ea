package egressclients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/bench/objects"
)

// The namespaces of the pods and of the Egresses.
const shop, internet = "shop", "internet"

// work runs the benchmark: it starts the operator, replaces clients and other pods, and stops
// everything.
func work(ctx context.Context, o Order, api *memapi.API, out *Outcome) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	c := &cluster{
		order: o, api: api, names: make([]string, o.Pods), seen: map[string]time.Time{}, reportedAt: map[string]time.Time{}, slices: map[string]int{},
	}
	if err := c.createObjects(ctx); err != nil {
		return err
	}
	parts, ctx := bubble.NewParts(ctx)
	parts.Start("the nodes", c.simulateDaemons)
	parts.Start("a gateway", c.simulateGateway)
	synctest.Wait()
	at, began := bubble.CPU(), time.Now()
	parts.Start("the operator", func(ctx context.Context) error { return operate(ctx, api) })
	if err = c.served(ctx, o.Clients); err == nil {
		out.Served, out.ServedCPU = time.Since(began), bubble.CPU()-at
		for _, n := range api.Written() {
			out.ServedWrites += n
		}
		err = c.measure(ctx, out)
	}
	cancel()
	err = errors.Join(parts.Wait(), err)
	return err
}

// cluster is a simulated cluster and what its gateway has received.
type cluster struct {
	order Order
	api   *memapi.API
	made  int      // pods
	names []string // of the pods

	mu         sync.Mutex           // guards all below
	reportedAt map[string]time.Time // by UID: when the node reported the client as set up
	seen       map[string]time.Time // by UID: when the gateway of the first Egress learned of the client
	slices     map[string]int       // clients in the slices of all Egresses, by the slices' names
	listed     int                  // sum of these
	objects    int                  // slices of the first Egress
	bytes      int                  // sent to the gateway
}

// createObjects creates the objects that exist before the operator starts.
func (c *cluster) createObjects(ctx context.Context) error {
	for _, name := range []string{shop, internet} {
		if err := c.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	for i := range c.order.Egresses {
		e := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: internet, Name: egressName(i)}, Spec: v1alpha1.EgressSpec{
			Destinations: []string{"0.0.0.0/0"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
		}}
		e.Status.ReadyGateways = 2
		if err := c.api.Create(ctx, e); err != nil {
			return err
		}
	}
	for i := range c.order.Pods {
		if err := c.createPod(ctx, i, i < c.order.Clients); err != nil {
			return err
		}
	}
	return nil
}

func egressName(i int) string { return fmt.Sprintf("nat-%d", i) }

// createPod creates a running pod with the fields that pods usually have. Clients are distributed
// round-robin over Egresses.
func (c *cluster) createPod(ctx context.Context, i int, isClient bool) error {
	p := podOf(i)
	c.made++
	p.Name, p.Spec.NodeName = fmt.Sprintf("web-%05d-%d", i, c.made), fmt.Sprintf("node-%03d", i%c.order.Nodes)
	c.names[i] = p.Name
	if isClient {
		p.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + internet: egressName(i % c.order.Egresses)}
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = []corev1.PodIP{{IP: addressOf(c.made)}}
	return c.api.Create(ctx, p)
}

func podOf(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Labels: map[string]string{"app": "web", "number": fmt.Sprint(i)}}}
	p.Spec.Containers = []corev1.Container{{Name: "web", Image: "registry.example/web:1", Env: []corev1.EnvVar{{Name: "PORT", Value: "80"}}}}
	return p
}

func addressOf(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

// simulateDaemons reports each EgressClient as set up.
func (c *cluster) simulateDaemons(ctx context.Context) error {
	w, err := c.api.Watch(ctx, &v1alpha1.EgressClientList{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.ResultChan():
			o, is := e.Object.(*v1alpha1.EgressClient)
			if !is || e.Type != "ADDED" || o.Status.Node != nil {
				continue
			}
			if err := c.setUp(ctx, o); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// setUp reports that a client is set up, as berthd does.
func (c *cluster) setUp(ctx context.Context, o *v1alpha1.EgressClient) error {
	p := &corev1.Pod{}
	if err := c.api.Get(ctx, client.ObjectKeyFromObject(o), p); err != nil {
		return client.IgnoreNotFound(err)
	}
	report := v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: o.Spec.PodUID, Addresses: []string{p.Status.PodIPs[0].IP}, Egresses: o.Spec.Egresses}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"node": report}})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.reportedAt[o.Spec.PodUID] = time.Now()
	c.mu.Unlock()
	return client.IgnoreNotFound(c.api.Status().Patch(ctx, o, client.RawPatch(client.Merge.Type(), body)))
}

// simulateGateway watches slices as a gateway of the first Egress does.
func (c *cluster) simulateGateway(ctx context.Context) error {
	w, err := c.api.Watch(ctx, &v1alpha1.EgressClientSliceList{}, client.InNamespace(internet))
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.ResultChan():
			o, is := e.Object.(*v1alpha1.EgressClientSlice)
			if !is {
				continue
			}
			if err := c.observe(o, e.Type == watch.Deleted); err != nil {
				return err
			}
		}
	}
}

// observe records a change of a slice. The API server sends a gateway only those of its own Egress.
func (c *cluster) observe(o *v1alpha1.EgressClientSlice, deleted bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, had := c.slices[o.Name]
	c.listed -= c.slices[o.Name]
	delete(c.slices, o.Name)
	if !deleted {
		c.slices[o.Name] = len(o.Clients)
		c.listed += len(o.Clients)
	}
	if o.Labels[v1alpha1.LabelEgress] != egressName(0) {
		return nil
	}
	if had {
		c.objects--
	}
	if !deleted {
		c.objects++
	}
	body, err := json.Marshal(o)
	c.bytes += len(body)
	for _, s := range o.Clients {
		if c.seen[s.UID].IsZero() {
			c.seen[s.UID] = time.Now()
		}
	}
	return err
}

// served waits until the slices list the given number of clients.
func (c *cluster) served(ctx context.Context, want int) error {
	for {
		c.mu.Lock()
		listed := c.listed
		c.mu.Unlock()
		if listed == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("slices list %d clients, want %d: %w", listed, want, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// measure replaces pods that use no Egress, then clients, and measures the cost of both.
func (c *cluster) measure(ctx context.Context, out *Outcome) error {
	<-time.After(time.Minute)
	out.Heap = bubble.LiveHeap()
	var err error
	if out.Idle, err = c.replace(ctx, c.order.Clients, false); err != nil {
		return err
	}
	c.mu.Lock()
	before, began := c.bytes, time.Now()
	c.mu.Unlock()
	written := c.api.Written()
	if out.CPU, err = c.replace(ctx, 0, true); err != nil {
		return err
	}
	if err := c.served(ctx, c.order.Clients); err != nil {
		return err
	}
	out.Writes = map[string]int{}
	for write, n := range c.api.Written() {
		out.Writes[write] = n - written[write]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	took := float64(c.order.Changes) / float64(c.order.PerSecond)
	out.Bytes = float64(c.bytes-before) / took
	out.Objects = 1 + c.objects // and the Egress itself
	for uid, at := range c.seen {
		if reported := c.reportedAt[uid]; !reported.IsZero() && reported.After(began) {
			out.Known = max(out.Known, at.Sub(reported))
		}
	}
	p := podOf(0)
	p.UID, p.Name = "00000000-0000-4000-8000-000000000000", "web-00000-00000"
	pod, err := json.Marshal(p)
	if err != nil {
		return err
	}
	out.PodObjects = c.order.Pods
	// A watch of pods sends at least one deletion and one addition per replacement.
	out.PodBytes = float64(2*len(pod)*c.order.Changes) / took
	return nil
}

// replace replaces pods, beginning with the given number, and returns the CPU time per replacement.
func (c *cluster) replace(ctx context.Context, from int, isClient bool) (time.Duration, error) {
	bubble.LiveHeap() // collects earlier garbage, to keep it out of the measurement
	at := bubble.CPU()
	err := objects.Each(ctx, c.order.Changes, 1, func(ctx context.Context, n int) error {
		i := from + n // round-robin over Egresses
		if err := c.api.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: c.names[i]}}); err != nil {
			return err
		}
		if err := c.createPod(ctx, i, isClient); err != nil {
			return err
		}
		<-time.After(time.Second / time.Duration(c.order.PerSecond))
		return nil
	})
	<-time.After(10 * time.Second)
	return (bubble.CPU() - at) / time.Duration(c.order.Changes), err
}
