package egressclients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/memapi"
	"github.com/berthnet/berth/bench/objects"
)

// pods and Egresses are in namespaces of their own.
const shop, internet = "shop", "internet"

// work raises a cluster whose operator runs, replaces clients and other pods, and ends it
// all.
func work(ctx context.Context, o Order, api *memapi.API, out *Outcome) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	c := &cluster{order: o, api: api, seen: map[string]time.Time{}, said: map[string]time.Time{}}
	if err := c.furnish(ctx); err != nil {
		return err
	}
	parts, ctx := bubble.NewParts(ctx)
	parts.Start("the operator", func(ctx context.Context) error { return operate(ctx, api) })
	parts.Start("the nodes", c.nodes)
	parts.Start("a gateway", c.gateway)
	err = c.measure(ctx, out)
	cancel()
	err = errors.Join(parts.Wait(), err)
	return err
}

// cluster is what becomes of the clients.
type cluster struct {
	order Order
	api   *memapi.API
	made  int // pods

	mu      sync.Mutex // guards all below
	said    map[string]time.Time
	seen    map[string]time.Time // by UID: when the gateway of the first Egress knew the client
	objects map[string]bool
	bytes   int // that it was sent
}

// furnish makes what is there before the operator is.
func (c *cluster) furnish(ctx context.Context) error {
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
		if err := c.makePod(ctx, i, i < c.order.Clients); err != nil {
			return err
		}
	}
	return nil
}

func egressName(i int) string { return fmt.Sprintf("nat-%d", i) }

// makePod makes a pod as the API server hands it out, with what pods usually have, on a
// node; a client uses the Egress of its number.
func (c *cluster) makePod(ctx context.Context, i int, uses bool) error {
	p := podOf(i)
	c.made++
	p.Name = fmt.Sprintf("web-%05d-%d", i, c.made)
	if uses {
		p.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + internet: egressName(i % c.order.Egresses)}
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = []corev1.PodIP{{IP: addressOf(c.made)}}
	return c.api.Create(ctx, p)
}

func podOf(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Labels: map[string]string{"app": "web", "number": fmt.Sprint(i)}}}
	p.Spec.NodeName = fmt.Sprintf("node-%03d", i%100)
	p.Spec.Containers = []corev1.Container{{Name: "web", Image: "registry.example/web:1", Env: []corev1.EnvVar{{Name: "PORT", Value: "80"}}}}
	return p
}

func addressOf(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

// nodes are the daemons: what an EgressClient asks for they set up, and say so.
func (c *cluster) nodes(ctx context.Context) error {
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

// setUp says that a client is set up, as a daemon does.
func (c *cluster) setUp(ctx context.Context, o *v1alpha1.EgressClient) error {
	p := &corev1.Pod{}
	if err := c.api.Get(ctx, client.ObjectKeyFromObject(o), p); err != nil {
		return client.IgnoreNotFound(err)
	}
	says := v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: o.Spec.PodUID, Addresses: []string{p.Status.PodIPs[0].IP}, Egresses: o.Spec.Egresses}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"node": says}})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.said[o.Spec.PodUID] = time.Now()
	c.mu.Unlock()
	return client.IgnoreNotFound(c.api.Status().Patch(ctx, o, client.RawPatch(client.Merge.Type(), body)))
}

// gateway is one of the first Egress: it is sent the slices of its Egress.
func (c *cluster) gateway(ctx context.Context) error {
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
			if !is || o.Labels[v1alpha1.LabelEgress] != egressName(0) {
				continue // the API server sends it others' not
			}
			body, err := json.Marshal(o)
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.bytes += len(body)
			if c.objects == nil {
				c.objects = map[string]bool{}
			}
			c.objects[o.Name] = e.Type != "DELETED"
			for _, s := range o.Clients {
				if c.seen[s.UID].IsZero() {
					c.seen[s.UID] = time.Now()
				}
			}
			c.mu.Unlock()
		}
	}
}

// served waits until slices have so many clients.
func (c *cluster) served(ctx context.Context, want int) error {
	n := -1
	for ctx.Err() == nil {
		list := &v1alpha1.EgressClientSliceList{}
		if err := c.api.List(ctx, list); err != nil {
			return err
		}
		n = 0
		for _, s := range list.Items {
			n += len(s.Clients)
		}
		if n == want {
			return nil
		}
		<-time.After(time.Second)
	}
	return fmt.Errorf("slices have %d clients, want %d: %w", n, want, ctx.Err())
}

// measure replaces pods that use no Egress, then clients, and measures what each took.
func (c *cluster) measure(ctx context.Context, out *Outcome) error {
	if err := c.served(ctx, c.order.Clients); err != nil {
		return err
	}
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
	for what, n := range c.api.Written() {
		out.Writes[what] = n - written[what]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	took := float64(c.order.Changes) / float64(c.order.PerSecond)
	out.Bytes = float64(c.bytes-before) / took
	out.Objects = 1 // its Egress
	for _, is := range c.objects {
		if is {
			out.Objects++
		}
	}
	for uid, at := range c.seen {
		if said := c.said[uid]; !said.IsZero() && said.After(began) {
			out.Known = max(out.Known, at.Sub(said))
		}
	}
	p := podOf(0)
	p.UID, p.Name = "00000000-0000-4000-8000-000000000000", "web-00000-00000"
	pod, err := json.Marshal(p)
	if err != nil {
		return err
	}
	out.PodObjects = c.order.Pods
	// One that goes, and one that is made: what a watch of pods sends at the least.
	out.PodBytes = float64(2*len(pod)*c.order.Changes) / took
	return nil
}

// replace deletes pods from a number on and makes others, and returns the CPU time of each.
func (c *cluster) replace(ctx context.Context, from int, uses bool) (time.Duration, error) {
	byNumber := map[string]*corev1.Pod{}
	list := &corev1.PodList{}
	if err := c.api.List(ctx, list, client.InNamespace(shop)); err != nil {
		return 0, err
	}
	for i := range list.Items {
		byNumber[list.Items[i].Labels["number"]] = &list.Items[i]
	}
	bubble.LiveHeap() // so that what the list left is not collected within
	at := bubble.CPU()
	err := objects.Each(ctx, c.order.Changes, 1, func(ctx context.Context, n int) error {
		i := from + n // one after the other of another Egress
		if err := c.api.Delete(ctx, byNumber[fmt.Sprint(i)]); err != nil {
			return err
		}
		if err := c.makePod(ctx, i, uses); err != nil {
			return err
		}
		<-time.After(time.Second / time.Duration(c.order.PerSecond))
		return nil
	})
	<-time.After(10 * time.Second)
	return (bubble.CPU() - at) / time.Duration(c.order.Changes), err
}
