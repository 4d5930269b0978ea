package oracle

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// egressView is a snapshot of Egresses, pods and namespaces in the API, the desired state derived from it (from
// docs/guides/egress.md, not from Berth's planners), and the inconsistencies found.
type egressView struct {
	egresses   map[string]*v1alpha1.Egress // by namespace/name
	namespaces map[string]*corev1.Namespace
	objects    map[string]*corev1.Pod             // by UID
	clients    map[string]*v1alpha1.EgressClient  // by namespace/name
	slices     []v1alpha1.EgressClientSlice       // all
	gateways   map[string][]*corev1.Pod           // of each Egress, by name
	pods       map[string]*node.Pod               // running, by UID
	uses       map[string][]*v1alpha1.Egress      // by pods' UIDs
	refused    map[string]map[string]string       // by pods' UIDs: reasons by namespace/name
	served     map[string]map[string][]netip.Addr // by Egress: addresses of pods by UID

	mu   sync.Mutex // guards errs
	errs []error
}

func (v *egressView) wrong(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

// Egress compares the desired state of Egresses, pods and namespaces with EgressClients, slices, the Egresses' statuses
// and objects, berthd's records, and the network namespaces of pods and gateways. These must contain exactly the desired
// tunnels, ports, routes, rules and nftables. It is part of Check, and like Check expects an idle lab.
func Egress(ctx context.Context, l *lab.Lab) []error {
	v, err := viewEgress(ctx, l.Kube.Client, running(l))
	if err != nil {
		return []error{err}
	}
	v.checkObjects(func(e types.NamespacedName) int { return len(l.Gateways(e)) })
	if err := checkOwned(ctx, l, v); err != nil {
		return []error{err}
	}
	var wg sync.WaitGroup
	for _, n := range l.Nodes() {
		wg.Go(func() { v.checkNode(n) })
	}
	wg.Wait()
	return v.errs
}

// running returns the pods of a lab, by UID.
func running(l *lab.Lab) map[string]*node.Pod {
	all := map[string]*node.Pod{}
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			all[p.UID] = p
		}
	}
	return all
}

// EgressObjects is the part of Egress that needs no lab: it verifies Egresses' statuses, EgressClients and slices. running
// contains the running pods by UID, with ContainerID and Addrs. gateways returns the number of running gateways of an
// Egress.
func EgressObjects(ctx context.Context, api client.Reader, running map[string]*node.Pod, gateways func(types.NamespacedName) int) []error {
	v, err := viewEgress(ctx, api, running)
	if err != nil {
		return []error{err}
	}
	v.checkObjects(gateways)
	return v.errs
}

func (v *egressView) checkObjects(gateways func(types.NamespacedName) int) {
	for _, ref := range slices.Sorted(maps.Keys(v.egresses)) {
		v.checkStatus(ref, gateways(key(v.egresses[ref])))
	}
	v.checkClients()
	v.checkSlices()
}

func key(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }

func viewEgress(ctx context.Context, api client.Reader, running map[string]*node.Pod) (*egressView, error) {
	v := &egressView{
		egresses: map[string]*v1alpha1.Egress{}, namespaces: map[string]*corev1.Namespace{}, objects: map[string]*corev1.Pod{},
		clients: map[string]*v1alpha1.EgressClient{}, gateways: map[string][]*corev1.Pod{}, pods: running,
		uses: map[string][]*v1alpha1.Egress{}, refused: map[string]map[string]string{}, served: map[string]map[string][]netip.Addr{},
	}
	egresses, namespaces, pods := &v1alpha1.EgressList{}, &corev1.NamespaceList{}, &corev1.PodList{}
	clients, parts := &v1alpha1.EgressClientList{}, &v1alpha1.EgressClientSliceList{}
	for _, list := range []client.ObjectList{egresses, namespaces, pods, clients, parts} {
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	for i := range egresses.Items {
		v.egresses[key(&egresses.Items[i]).String()] = &egresses.Items[i]
	}
	for i := range namespaces.Items {
		v.namespaces[namespaces.Items[i].Name] = &namespaces.Items[i]
	}
	for i := range clients.Items {
		v.clients[key(&clients.Items[i]).String()] = &clients.Items[i]
	}
	v.slices = parts.Items
	for i := range pods.Items {
		p := &pods.Items[i]
		v.objects[string(p.UID)] = p
		if of := gatewayOf(p); of != "" {
			v.gateways[of] = append(v.gateways[of], p)
		}
		v.decide(p)
	}
	return v, nil
}

// checkStatus compares an Egress's status with its pods and its running gateways.
func (v *egressView) checkStatus(ref string, running int) {
	e := v.egresses[ref]
	wrong := func(format string, args ...any) { v.wrong("Egress "+ref+": "+format, args...) }
	if e.DeletionTimestamp != nil {
		wrong("being deleted")
	}
	if e.Status.ObservedGeneration != e.Generation {
		wrong("status.observedGeneration is %d, but the generation is %d", e.Status.ObservedGeneration, e.Generation)
	}
	if want := int(*e.Spec.Replicas); len(v.gateways[ref]) != want || running != want {
		wrong("%d pods and %d running gateways, want %d", len(v.gateways[ref]), running, want)
	}
	var want, have []string
	for _, p := range v.gateways[ref] {
		var ips []string
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		want = append(want, fmt.Sprint(p.Name, p.UID, ips, false))
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
		if !ready || p.DeletionTimestamp != nil {
			wrong("gateway %s: ready is %t, terminating is %t", p.Name, ready, p.DeletionTimestamp != nil)
		}
	}
	for _, g := range e.Status.Gateways {
		have = append(have, fmt.Sprint(g.Name, types.UID(g.UID), g.Addresses, g.Ending))
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		wrong("status names gateways %v, but the pods are %v", have, want)
	}
	refused := 0
	for _, of := range v.refused {
		if _, is := of[ref]; is {
			refused++
		}
	}
	if got := [3]int32{e.Status.ReadyGateways, e.Status.Clients, e.Status.RefusedClients}; got != [3]int32{*e.Spec.Replicas, int32(len(v.served[ref])), int32(refused)} {
		wrong("status counts %d gateways, %d clients and %d refused, want %d, %d and %d", got[0], got[1], got[2], *e.Spec.Replicas, len(v.served[ref]), refused)
	}
	is := func(condition string, want bool) {
		if meta.IsStatusConditionTrue(e.Status.Conditions, condition) != want {
			c := meta.FindStatusCondition(e.Status.Conditions, condition)
			wrong("condition %s should be %t: %v", condition, want, c)
		}
	}
	is(v1alpha1.ConditionServiceReady, true)
	is(v1alpha1.ConditionAvailable, *e.Spec.Replicas > 0)
	is(v1alpha1.ConditionClientsReady, refused == 0 && !v.missesConsent(e))
}

// missesConsent reports whether an Egress selects a namespace that could consent but does not.
func (v *egressView) missesConsent(e *v1alpha1.Egress) bool {
	for _, n := range v.namespaces {
		some, _ := selects(e, n.Name, n.Labels, nil)
		if some && !consents(n, v.namespaces[e.Namespace]) && !slices.Contains(systemNamespaces, n.Name) {
			return true
		}
	}
	return false
}

// checkClients compares EgressClients with the pods that need one.
func (v *egressView) checkClients() {
	for name, c := range v.clients {
		if _, wanted := v.refused[c.Spec.PodUID]; !wanted {
			v.wrong("EgressClient %s is leaked: pod %s uses no Egress", name, c.Spec.PodUID)
		}
	}
	for uid, refused := range v.refused {
		p := v.objects[uid]
		name := key(p).String()
		c := v.clients[name]
		if c == nil || c.Spec.PodUID != uid || c.Spec.NodeName != p.Spec.NodeName {
			v.wrong("pod %s has no EgressClient of its own on %s: %+v", name, p.Spec.NodeName, c)
			continue
		}
		if have := refusals(c); !maps.Equal(have, refused) {
			v.wrong("EgressClient %s lists %v as refused, want %v", name, have, refused)
		}
		want := references(v.uses[uid])
		if have := refs(c.Spec.Egresses); !slices.Equal(have, want) {
			v.wrong("EgressClient %s lists the Egresses %v, want %v", name, have, want)
		}
		if len(want) == 0 {
			continue
		}
		report := c.Status.Node
		if report == nil || report.State != v1alpha1.EgressClientSetUp || !slices.Equal(refs(report.Egresses), want) {
			v.wrong("EgressClient %s: status.node is %+v, want %v set up", name, report, want)
			continue
		}
		if runs := v.pods[uid]; runs == nil || report.ContainerID != runs.ContainerID || !sameAddrs(report.Addresses, runs.Addrs) {
			v.wrong("EgressClient %s: status.node reports container %.12s with %v, the running pod is %+v", name, report.ContainerID, report.Addresses, runs)
		}
		reach := !slices.ContainsFunc(v.uses[uid], func(e *v1alpha1.Egress) bool { return *e.Spec.Replicas == 0 })
		if ready := meta.IsStatusConditionTrue(c.Status.Conditions, "Ready"); ready != (reach && len(refused) == 0) {
			v.wrong("EgressClient %s: condition Ready is %t: %v", name, ready, c.Status.Conditions)
		}
	}
}

func refusals(c *v1alpha1.EgressClient) map[string]string {
	out := map[string]string{}
	for _, r := range c.Spec.Refused {
		out[r.Namespace+"/"+r.Name] = r.Reason
	}
	return out
}

func refs(list []v1alpha1.EgressReference) (out []string) {
	for _, r := range list {
		out = append(out, r.Namespace+"/"+r.Name+" "+r.UID)
	}
	slices.Sort(out)
	return out
}

func references(list []*v1alpha1.Egress) (out []string) {
	for _, e := range list {
		out = append(out, key(e).String()+" "+string(e.UID))
	}
	slices.Sort(out)
	return out
}

func sameAddrs(texts []string, addrs []netip.Addr) bool {
	var want []string
	for _, a := range addrs {
		want = append(want, a.String())
	}
	slices.Sort(want)
	return slices.Equal(slices.Sorted(slices.Values(texts)), want)
}

// checkSlices compares the desired clients with the slices.
func (v *egressView) checkSlices() {
	have := map[string]map[string]bool{}
	for i := range v.slices {
		s := &v.slices[i]
		ref := s.Namespace + "/" + s.Labels[v1alpha1.LabelEgress]
		if e := v.egresses[ref]; e == nil || !ownedBy(s, e) {
			v.wrong("EgressClientSlice %s is leaked: its Egress %s does not exist", key(s), ref)
			continue
		}
		if have[ref] == nil {
			have[ref] = map[string]bool{}
		}
		for _, c := range s.Clients {
			addrs, wanted := v.served[ref][c.UID]
			if !wanted || have[ref][c.UID] || !sameAddrs(c.Addresses, addrs) {
				v.wrong("EgressClientSlice %s: pod %s has addresses %v; should be listed: %t, with %v; listed in another slice: %t", key(s), c.Pod, c.Addresses, wanted, addrs, have[ref][c.UID])
			}
			have[ref][c.UID] = true
		}
	}
	for ref, pods := range v.served {
		for uid := range pods {
			if !have[ref][uid] {
				v.wrong("pod %s is in no slice of Egress %s", key(v.objects[uid]), ref)
			}
		}
	}
}

func ownedBy(o client.Object, e *v1alpha1.Egress) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.Kind == "Egress" && r.UID == e.UID })
}

// checkOwned verifies the objects that the operator creates for each Egress.
func checkOwned(ctx context.Context, l *lab.Lab, v *egressView) error {
	kinds := map[string]client.ObjectList{
		"Deployment": &appsv1.DeploymentList{}, "Service": &corev1.ServiceList{}, "ServiceAccount": &corev1.ServiceAccountList{},
		"Role": &rbacv1.RoleList{}, "RoleBinding": &rbacv1.RoleBindingList{}, "PodDisruptionBudget": &policyv1.PodDisruptionBudgetList{},
	}
	for kind, list := range kinds {
		if err := l.Kube.Client.List(ctx, list, client.HasLabels{v1alpha1.LabelEgress}); err != nil {
			return fmt.Errorf("list %ss of Egresses: %w", kind, err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, one := range objects {
			o, ok := one.(client.Object)
			if !ok {
				continue
			}
			ref := key(o).String()
			e := v.egresses[ref]
			if e == nil || !ownedBy(o, e) || o.GetDeletionTimestamp() != nil {
				v.wrong("%s %s is leaked: its Egress does not exist", kind, ref)
				continue
			}
			if have[ref] = true; kind == "PodDisruptionBudget" && e.Spec.PodDisruptionBudget == nil {
				v.wrong("%s %s is leaked: its Egress does not need it", kind, ref)
			}
			if s, ok := o.(*corev1.Service); ok && !slices.Equal(e.Status.ServiceIPs, s.Spec.ClusterIPs) {
				v.wrong("Egress %s: status.serviceIPs is %v, the Service has %v", ref, e.Status.ServiceIPs, s.Spec.ClusterIPs)
			}
		}
		for ref, e := range v.egresses {
			if !have[ref] && (kind != "PodDisruptionBudget" || e.Spec.PodDisruptionBudget != nil) {
				v.wrong("Egress %s has no %s", ref, kind)
			}
		}
	}
	return nil
}
