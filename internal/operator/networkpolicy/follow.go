package networkpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/retry"
)

// Watches are the kinds that the operator caches for network policies, except ClusterNetworkPolicies, whose kind may not
// be installed.
func Watches() []*watched.Kind {
	return []*watched.Kind{watched.PolicyPods, watched.Namespaces, watched.Nodes, networkPolicies}
}

var networkPolicies = watched.Of(&networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}, nil)

// clusterPolicies is the kind ClusterNetworkPolicy.
var clusterPolicies = schema.GroupVersionResource{Group: networkpolicy.GroupName, Version: networkpolicy.GroupVersion.Version, Resource: "clusternetworkpolicies"}

const kindClusterPolicy = "ClusterNetworkPolicy"

const (
	// reasonUnresolved is the reason of the Event of a policy that has problems.
	reasonUnresolved = "PolicyUnresolved"
	// reviewEvery is the interval at which policies are searched for port names that no pod has.
	reviewEvery = time.Minute
	// maxProblems is the maximum number of problems of a policy that are reported at once. A policy can have thousands.
	maxProblems = 10
)

// follower passes changes of objects on to a Feed, and reports the problems of policies.
type follower struct {
	feed     *feed.Feed
	events   events.EventRecorder
	optional *watched.Optional // ClusterNetworkPolicies
	clock    clock.Clock
	log      *slog.Logger
	nodes    *nodeAddresses

	order      sync.Mutex // held while pods and namespaces are passed on; guards the next two fields
	namespaces map[string]bool
	held       map[string]map[string]resolve.Pod // pods whose namespace is not known yet, by namespace and name

	mu       sync.Mutex // guards below
	policies map[policy.Ref]*followed
	unsynced error                                         // why some cache may be stale; nil if all are fresh
	passedOn []toolscache.ResourceEventHandlerRegistration // of these caches
}

// followed is a policy that was passed on.
type followed struct {
	object   client.Object
	compiled compile.Compiled
	reported map[string]bool // problems
}

// start passes on the objects of the cache and all later changes. It waits until the cache is proved to be fresh, because an
// operator may have waited for leadership for long, and its watch may have failed in the meantime.
func (f *follower) start(ctx context.Context, c cache.Cache, api watched.API) error {
	first := &oldestFirst{ResourceEventHandler: handler(
		func(o *networkingv1.NetworkPolicy) { f.setPolicy(o, compile.NetworkPolicy(o)) },
		func(o *networkingv1.NetworkPolicy) { f.deletePolicy(policy.Ref{Namespace: o.Namespace, Name: o.Name}) })}
	for _, kind := range []struct {
		name string
		*watched.Kind
		handler toolscache.ResourceEventHandler
	}{
		{"Nodes", watched.Nodes, handler(
			func(o *corev1.Node) {
				addrs := watched.AddressesOf(o)
				f.nodes.set(o.Name, addrs)
				f.feed.SetNode(o.Name, o.Labels, addrs)
			},
			func(o *corev1.Node) {
				f.nodes.set(o.Name, nil)
				f.feed.DeleteNode(o.Name)
			})},
		{"Namespaces", watched.Namespaces, handler(f.setNamespace, f.deleteNamespace)},
		{"Pods", watched.PolicyPods, handler(f.setPod, f.deletePod)},
		{"NetworkPolicies", networkPolicies, first},
	} {
		informer, err := c.GetInformer(ctx, kind.Object)
		if err != nil {
			return fmt.Errorf("follow %T for network policies: %w", kind.Object, err)
		}
		shared, is := informer.(toolscache.SharedIndexInformer)
		if !is {
			return fmt.Errorf("follow %T for network policies: %T has no store", kind.Object, informer)
		}
		f.awaitFresh(ctx, kind.name, func(ctx context.Context) error { return api.Fresh(ctx, kind.Kind, shared.GetStore(), f.clock) })
		r, err := informer.AddEventHandler(kind.handler)
		if err != nil {
			return fmt.Errorf("follow %T for network policies: %w", kind.Object, err)
		}
		f.mu.Lock()
		f.passedOn = append(f.passedOn, r)
		f.mu.Unlock()
		f.await(ctx) // the budget depends on the number of pods, so all pods come before the first policy
	}
	first.pass()
	f.feed.Loaded()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsynced = context.Cause(ctx)
	return nil
}

// await waits until all objects that exist were passed on.
func (f *follower) await(ctx context.Context) {
	for f.passing() {
		select {
		case <-ctx.Done():
			return
		case <-f.clock.After(loadEvery):
		}
	}
}

// loadEvery is the polling interval of await.
const loadEvery = 20 * time.Millisecond

// passing reports whether objects that exist are still being passed on.
func (f *follower) passing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.passedOn, func(r toolscache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
}

// freshWithin limits an attempt to prove that a cache is fresh.
const freshWithin = 30 * time.Second

// awaitFresh returns once prove succeeds, or when ctx ends. Until then, serves returns the reason why nodes wait.
func (f *follower) awaitFresh(ctx context.Context, kind string, prove func(context.Context) error) {
	said := ""
	_ = retry.Until(ctx, f.clock, retry.Policy{Spread: true}, func(all context.Context) error { // it fails only when ctx ends
		ctx, cancel := context.WithTimeoutCause(all, freshWithin, fmt.Errorf("the watch is behind the API server, and has not caught up within %v", freshWithin))
		defer cancel()
		err := prove(ctx)
		if err == nil || all.Err() != nil {
			return err
		}
		err = fmt.Errorf("the operator's cache of %s may be stale: %w", kind, err)
		f.mu.Lock()
		f.unsynced = err
		f.mu.Unlock()
		if said != err.Error() {
			said = err.Error()
			f.log.Warn("cannot send network policies to nodes yet, will try again", "err", err)
		}
		return err
	})
}

// errReading is the error of serves before all objects were passed on.
var errReading = errors.New("the operator has not read all pods and network policies of the cluster yet")

// serves returns the reason why nodes cannot be served yet, or nil.
func (f *follower) serves() error {
	f.mu.Lock()
	err := f.unsynced
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.passing() {
		return errReading
	}
	_, err = f.optional.Read()
	return err
}

// oldestFirst passes on the policies that exist at the start in order of creation, so that the newest ones exceed a limit.
type oldestFirst struct {
	toolscache.ResourceEventHandler

	mu   sync.Mutex // guards held, and is held while policies are passed on
	held []*networkingv1.NetworkPolicy
}

// OnAdd implements toolscache.ResourceEventHandler.
func (h *oldestFirst) OnAdd(o any, initial bool) {
	if p, is := o.(*networkingv1.NetworkPolicy); is && initial {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held = append(h.held, p)
		return
	}
	h.pass()
	h.ResourceEventHandler.OnAdd(o, initial)
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (h *oldestFirst) OnUpdate(before, now any) {
	h.pass()
	h.ResourceEventHandler.OnUpdate(before, now)
}

// OnDelete implements toolscache.ResourceEventHandler.
func (h *oldestFirst) OnDelete(o any) {
	h.pass()
	h.ResourceEventHandler.OnDelete(o)
}

// pass passes on what is held, once the initial list is complete.
func (h *oldestFirst) pass() {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.held, func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range h.held {
		h.ResourceEventHandler.OnAdd(p, true)
	}
	h.held = nil
}

// handler calls set for each new state of an object, and remove when it is deleted.
func handler[O client.Object](set, remove func(O)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { set(o.(O)) },
		UpdateFunc: func(_, o any) { set(o.(O)) },
		DeleteFunc: func(o any) {
			if unknown, is := o.(toolscache.DeletedFinalStateUnknown); is {
				o = unknown.Obj
			}
			if object, is := o.(O); is { // the last state may be lost
				remove(object)
			}
		},
	}
}

// setPod passes on a pod once its namespace is known. The watches of both kinds are independent, and without the namespace's
// labels no ClusterNetworkPolicy would select the pod, and its node would start it.
func (f *follower) setPod(o *corev1.Pod) {
	p, ok := resolve.ReadPod(o)
	if !ok {
		f.deletePod(o)
		return
	}
	f.order.Lock()
	defer f.order.Unlock()
	switch {
	case f.namespaces[p.Namespace]:
		f.feed.SetPod(p)
	case f.held[p.Namespace] == nil:
		f.held[p.Namespace] = map[string]resolve.Pod{p.Name: p}
	default:
		f.held[p.Namespace][p.Name] = p
	}
}

func (f *follower) deletePod(o *corev1.Pod) {
	f.order.Lock()
	defer f.order.Unlock()
	if held := f.held[o.Namespace]; held != nil {
		if delete(held, o.Name); len(held) == 0 {
			delete(f.held, o.Namespace)
		}
	}
	f.feed.DeletePod(client.ObjectKeyFromObject(o))
}

func (f *follower) setNamespace(o *metav1.PartialObjectMetadata) {
	f.order.Lock()
	defer f.order.Unlock()
	f.feed.SetNamespace(o.Name, o.Labels)
	f.namespaces[o.Name] = true
	for _, p := range f.held[o.Name] {
		f.feed.SetPod(p)
	}
	delete(f.held, o.Name)
}

func (f *follower) deleteNamespace(o *metav1.PartialObjectMetadata) {
	f.order.Lock()
	defer f.order.Unlock()
	f.feed.DeleteNamespace(o.Name)
	delete(f.namespaces, o.Name)
}

// nodeAddresses are the addresses of nodes.
type nodeAddresses struct {
	mu     sync.Mutex // guards below
	byNode map[string][]netip.Addr
	nodes  map[netip.Addr]int // number of nodes with the address
}

func newNodeAddresses() *nodeAddresses {
	return &nodeAddresses{byNode: map[string][]netip.Addr{}, nodes: map[netip.Addr]int{}}
}

func (n *nodeAddresses) set(node string, addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.byNode[node] {
		if n.nodes[a]--; n.nodes[a] == 0 {
			delete(n.nodes, a)
		}
	}
	for _, a := range addrs {
		n.nodes[a]++
	}
	if n.byNode[node] = addrs; len(addrs) == 0 {
		delete(n.byNode, node)
	}
}

// has reports whether an address is a node's.
func (n *nodeAddresses) has(a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[a] > 0
}

// clusterHandler passes on ClusterNetworkPolicies.
func (f *follower) clusterHandler() toolscache.ResourceEventHandler {
	return handler(func(o *unstructured.Unstructured) {
		typed := &networkpolicy.ClusterNetworkPolicy{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
			f.setPolicy(o, compile.Compiled{
				Policy: &policy.Policy{Ref: policy.Ref{Name: o.GetName()}, Tier: policy.Admin}, Subject: compile.Nothing, NoSubject: true,
				Problems: []string{fmt.Sprintf("expected %s of %s: %v", kindClusterPolicy, clusterPolicies.GroupVersion(), err)},
			})
			return
		}
		f.setPolicy(o, compile.ClusterNetworkPolicy(typed))
	}, func(o *unstructured.Unstructured) { f.deletePolicy(policy.Ref{Name: o.GetName()}) })
}

// lastReadable returns the last version of a policy with a valid pod selector, in place of a version without one. If there is none,
// the policy selects no pods. Its problems report either.
func (f *follower) lastReadable(c compile.Compiled) compile.Compiled {
	f.mu.Lock()
	defer f.mu.Unlock()
	says, problems := "this operator has not read a valid version before, so the policy selects no pods", c.Problems
	if before := f.policies[c.Policy.Ref]; before != nil && !before.compiled.NoSubject {
		c, says = before.compiled, "the previous version remains in force"
	}
	c.Problems = nil
	for _, text := range problems {
		c.Problems = append(c.Problems, text+"; "+says)
	}
	return c
}

// clusterChanged deletes all ClusterNetworkPolicies when their kind is removed.
func (f *follower) clusterChanged() {
	if store, err := f.optional.Read(); err != nil || store != nil {
		return
	}
	f.mu.Lock()
	var gone []policy.Ref
	for ref := range f.policies {
		if ref.Namespace == "" {
			gone = append(gone, ref)
		}
	}
	f.mu.Unlock()
	for _, ref := range gone {
		f.deletePolicy(ref)
	}
}

func (f *follower) setPolicy(o client.Object, c compile.Compiled) {
	if c.NoSubject {
		c = f.lastReadable(c)
	}
	f.feed.SetPolicy(c)
	f.mu.Lock()
	p := &followed{o, c, map[string]bool{}}
	if before := f.policies[c.Policy.Ref]; before != nil {
		p.reported = before.reported
	}
	f.policies[c.Policy.Ref] = p
	f.mu.Unlock()
	f.report(p, slices.Concat(c.Problems, f.feed.Refused(c.Policy.Ref)), false)
}

func (f *follower) deletePolicy(ref policy.Ref) {
	f.feed.DeletePolicy(ref)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.policies, ref)
}

// report records an Event for each new problem. If all is set, earlier problems that are not among these are resolved.
func (f *follower) report(p *followed, problems []string, all bool) {
	f.mu.Lock()
	reported, fresh := map[string]bool{}, []string{}
	for _, text := range problems {
		if len(reported) == maxProblems {
			break
		}
		if !p.reported[text] && !reported[text] {
			fresh = append(fresh, text)
		}
		reported[text] = true
	}
	if !all && len(p.reported) < 2*maxProblems { // otherwise it is reported again
		maps.Copy(reported, p.reported)
	}
	p.reported = reported
	f.mu.Unlock()
	for _, text := range fresh {
		f.events.Eventf(p.object, nil, corev1.EventTypeWarning, reasonUnresolved, "Resolve", "%s", text)
	}
}

// run reviews policies until ctx ends.
func (f *follower) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.clock.After(reviewEvery):
		}
		if f.serves() == nil {
			f.review()
		}
	}
}

// review also reports port names that no pod has. They are normal while pods are starting, so changes of a policy do not
// check for them.
func (f *follower) review() {
	f.mu.Lock()
	var all []*followed
	for _, p := range f.policies {
		all = append(all, p)
	}
	f.mu.Unlock()
	for _, p := range all {
		f.report(p, slices.Concat(p.compiled.Problems, f.feed.Refused(p.compiled.Policy.Ref), f.feed.UnknownPorts(p.compiled)), true)
	}
}

// counts returns the numbers of policies of both kinds, and of those with problems.
func (f *follower) counts() (namespaced, cluster, unresolved int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ref, p := range f.policies {
		if ref.Namespace == "" {
			cluster++
		} else {
			namespaced++
		}
		if len(p.reported) > 0 {
			unresolved++
		}
	}
	return namespaced, cluster, unresolved
}
