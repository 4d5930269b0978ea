package virtual

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab/oracle"
	labnode "github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/apifake"
)

var (
	egressDaemon   = named("daemon.egress.")
	egressOperator = named("operator.gateways.", "operator.egressclient.")
)

// egressKinds are the kinds of egress objects.
var egressKinds = func() (kinds []apifake.Kind) {
	for of, list := range map[schema.GroupVersion]map[string]string{
		v1alpha1.GroupVersion:       {"egresses": "Egress", "egressclients": "EgressClient", "egressclientslices": "EgressClientSlice"},
		corev1.SchemeGroupVersion:   {"serviceaccounts": "ServiceAccount", "services": "Service"},
		rbacv1.SchemeGroupVersion:   {"roles": "Role", "rolebindings": "RoleBinding"},
		policyv1.SchemeGroupVersion: {"poddisruptionbudgets": "PodDisruptionBudget"},
		appsv1.SchemeGroupVersion:   {"deployments": "Deployment", "replicasets": "ReplicaSet"},
	} {
		for resource, kind := range list {
			status := kind == "Egress" || kind == "EgressClient" || kind == "Deployment"
			kinds = append(kinds, apifake.Kind{GroupVersionKind: of.WithKind(kind), Resource: resource, Status: status})
		}
	}
	return kinds
}()

func TestHaltsWithEgress(t *testing.T) {
	eachCrash(t, slices.Concat(egressOperator, egressDaemon, harness.Sample(t, 9, ofDaemon)), func(t *testing.T, at crash) {
		n := newNode(t, slices.Concat(quick, []string{"--ipam=pool", "--egress", "--egress-probe-interval=0"})...)
		c := newCluster(t, n.log, "--ipam=pool", "--egress", "--egress-image=berth-egress:test")
		c.addNode(n)
		n.families = ipfamily.Dual
		c.addPool(v1alpha1.DefaultPool, "10.2.0.0/26", "fd02::/122")
		victim := n.program
		if slices.Contains(egressOperator, at.failpoint) {
			victim = c.program
		}
		victim.haltAt(at)
		u := newEgressUsers(c, n)
		c.start()
		n.start()
		u.exercise()
		n.close()
		c.close()
		victim.wantHalt(at)
	})
}

// egressUsers creates Egresses and pods, and stands in for Kubernetes' controllers and kubelets. Pods are in
// namespace default, Egresses in namespace internet.
type egressUsers struct {
	*cluster
	n        *node
	wishes   map[string]wish             // by pod; not changed while pods are added
	egresses map[string]*v1alpha1.Egress // by name
	gateways map[string][]string         // gateway pods by Egress
}

// wish is the labels and annotations of a pod.
type wish struct {
	named string // Egress named by the annotation, if any
	pays  bool   // has the label that Egress dc selects
}

func newEgressUsers(c *cluster, n *node) *egressUsers {
	u := &egressUsers{cluster: c, n: n, wishes: map[string]wish{}, egresses: map[string]*v1alpha1.Egress{}, gateways: map[string][]string{}}
	for i := range 8 {
		w := wish{pays: i%4 == 1 || i%4 == 2}
		if i%4 == 0 || i%4 == 2 {
			w.named = "nat"
		}
		u.wishes[fmt.Sprintf("pod-%d", i)] = w
	}
	ctx := u.t.Context()
	check(u.t, u.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "internet"}}))
	check(u.t, patch(u.t, u.admin.Patch, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, inMetadata(map[string]any{
		"labels": map[string]any{"team": "shop"}, "annotations": map[string]any{v1alpha1.AnnotationEgressSelectableFrom: "internet"},
	})))
	n.pods.object, n.pods.describe, n.pods.ready, n.askGateway = u.object, u.describe, u.ready, u.ask
	return u
}

func inMetadata(fields map[string]any) map[string]any { return map[string]any{"metadata": fields} }

// exercise creates Egresses and pods, changes all of them while pods run, and deletes the Egresses, one before its
// pods and one after.
func (u *egressUsers) exercise() {
	u.t.Helper()
	pods := &u.n.pods
	// A pod may use destinations within those of an Egress that selects it, but not the other way round.
	u.make("nat", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24", "2001:db8::/48"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}})
	u.make("dc", v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/0", "::/0"}, Clients: &v1alpha1.EgressClientSelector{
		NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": "shop"}}, PodSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "pay"}},
	}})
	u.scale("nat", 1)
	u.scale("dc", 1)
	pods.each(0, 6, pods.add)
	u.n.settle(u.agree)

	u.wish("pod-0", wish{named: "none"}) // does not exist
	u.wish("pod-2", wish{})
	u.wish("pod-3", wish{pays: true})
	u.change("nat", func(s *v1alpha1.EgressSpec) { s.PodDisruptionBudget, s.Replicas = nil, new(int32(2)) })
	u.change("dc", func(s *v1alpha1.EgressSpec) { s.PodDisruptionBudget, s.Destinations = nil, []string{"198.51.100.0/24"} })
	pods.each(1, 2, pods.del)
	pods.each(4, 5, pods.del)
	pods.each(6, 8, pods.add)
	u.scale("nat", 2)
	u.n.settle(u.agree)

	u.remove("dc")
	u.n.settle(u.agree)
	u.collect("dc")
	u.n.settle(u.agree)
	for _, live := range [][2]int{{0, 1}, {2, 4}, {5, 8}} {
		pods.each(live[0], live[1], pods.del)
	}
	u.n.settle(u.agree)
	u.remove("nat")
	u.collect("nat")
	u.n.settle(u.agree)
}

func (u *egressUsers) make(name string, spec v1alpha1.EgressSpec) {
	u.t.Helper()
	one := intstr.FromInt32(1)
	spec.PodDisruptionBudget, spec.Replicas = &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}, new(int32(1))
	e := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name}, Spec: spec}
	check(u.t, u.admin.Create(u.t.Context(), e))
	u.egresses[name] = e
}

func (u *egressUsers) change(name string, edit func(*v1alpha1.EgressSpec)) {
	u.t.Helper()
	e := u.egresses[name]
	before := e.DeepCopy()
	edit(&e.Spec)
	check(u.t, u.admin.Patch(u.t.Context(), e, client.MergeFrom(before)))
}

func (u *egressUsers) remove(name string) {
	u.t.Helper()
	check(u.t, u.admin.Delete(u.t.Context(), u.egresses[name]))
	delete(u.egresses, name)
}

// collect deletes the objects of a deleted Egress.
func (u *egressUsers) collect(name string) {
	u.t.Helper()
	for _, pod := range u.gateways[name] {
		u.end(pod)
	}
	delete(u.gateways, name)
	<-time.After(time.Second) // Kubernetes' garbage collector also finds what the operator made meanwhile
	u.api.Collect()
}

// elsewhereAt has the addresses of gateways on another node.
var elsewhereAt = map[string][]string{"nat": {"10.9.0.1", "fd09::1"}, "dc": {"10.9.0.2", "fd09::2"}}

// onNode reports whether a gateway is on the node: every second gateway of an Egress is.
func onNode(gateway string) bool { return strings.HasSuffix(gateway, "-1") }

// scale waits until an Egress's Deployment has a number of replicas, and acts like the controllers of Deployments and
// ReplicaSets and the kubelets.
func (u *egressUsers) scale(name string, replicas int) {
	u.t.Helper()
	ctx, key := u.t.Context(), client.ObjectKey{Namespace: "internet", Name: name}
	await(u.t, func() error {
		d := &appsv1.Deployment{}
		if err := u.admin.Get(ctx, key, d); err != nil || int(*d.Spec.Replicas) != replicas {
			return fmt.Errorf("Deployment %s has %v replicas, want %d: %w", name, d.Spec.Replicas, replicas, err)
		}
		return nil
	})
	for i := len(u.gateways[name]); i < replicas; i++ {
		pod := fmt.Sprintf("%s-%d", name, i)
		u.gateways[name] = append(u.gateways[name], pod)
		if onNode(pod) {
			check(u.t, u.n.pods.add(pod))
			continue
		}
		check(u.t, u.object(pod, true))
		check(u.t, u.ready(pod, elsewhereAt[name]))
	}
}

func (u *egressUsers) end(pod string) {
	u.t.Helper()
	if onNode(pod) {
		check(u.t, u.n.pods.del(pod))
		return
	}
	check(u.t, u.object(pod, false))
}

// object creates or deletes the Pod of a user or a gateway.
func (u *egressUsers) object(name string, exists bool) error {
	ctx, w := u.t.Context(), u.wishes[name]
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespaceOf(name), Name: name}, Spec: corev1.PodSpec{NodeName: nodeName}}
	if w.named != "" {
		o.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": w.named}
	}
	if w.pays {
		o.Labels = map[string]string{"app": "pay"}
	}
	if !exists {
		return u.admin.Delete(ctx, o)
	}
	if egress, _, _ := strings.Cut(name, "-"); egress != "pod" {
		if !onNode(name) {
			o.Spec.NodeName = "node-2"
		}
		if err := u.made(ctx, egress, o); err != nil {
			return err
		}
	}
	return u.admin.Create(ctx, o)
}

func (u *egressUsers) namespaceOf(pod string) string {
	if _, person := u.wishes[pod]; person {
		return "default"
	}
	return "internet"
}

// describe adds a Pod's metadata to an ADD.
func (u *egressUsers) describe(r *rpc.AddRequest) error {
	o := &corev1.Pod{}
	err := u.admin.Get(u.t.Context(), client.ObjectKey{Namespace: u.namespaceOf(r.Pod.Name), Name: r.Pod.Name}, o)
	r.Pod.Namespace, r.Pod.Uid, r.Annotations = o.Namespace, string(o.UID), &rpc.Annotations{All: o.Annotations}
	return err
}

// ready acts like a pod's kubelet.
func (u *egressUsers) ready(pod string, addresses []string) error {
	return u.cluster.ready(u.namespaceOf(pod), pod, addresses)
}

// made completes a Pod like those of an Egress's ReplicaSet.
func (u *egressUsers) made(ctx context.Context, egress string, o *corev1.Pod) error {
	d, rs := &appsv1.Deployment{}, &appsv1.ReplicaSet{}
	if err := u.admin.Get(ctx, client.ObjectKey{Namespace: "internet", Name: egress}, d); err != nil {
		return err
	}
	err := u.admin.Get(ctx, client.ObjectKey{Namespace: "internet", Name: egress + "-rs"}, rs)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil {
		rs.Namespace, rs.Name, rs.Labels = "internet", egress+"-rs", d.Spec.Template.Labels
		rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
		if err := u.admin.Create(ctx, rs); err != nil {
			return err
		}
	}
	o.Labels, o.Annotations = d.Spec.Template.Labels, d.Spec.Template.Annotations
	o.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	return nil
}

// wish changes labels and annotations of a running pod.
func (u *egressUsers) wish(pod string, w wish) {
	u.t.Helper()
	u.wishes[pod] = w
	or := func(is bool, value string) any {
		if is {
			return value
		}
		return nil
	}
	check(u.t, patch(u.t, u.admin.Patch, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}}, inMetadata(map[string]any{
		"annotations": map[string]any{v1alpha1.AnnotationEgressPrefix + "internet": or(w.named != "", w.named)}, "labels": map[string]any{"app": or(w.pays, "pay")},
	})))
}

// ask returns a gateway's reply: it serves a pod once the pod is in a slice.
func (u *egressUsers) ask(ctx context.Context, _ netip.AddrPort, pod string, addrs []netip.Addr) error {
	for ; ; time.Sleep(100 * time.Millisecond) { //nolint:forbidigo // virtual time
		var list v1alpha1.EgressClientSliceList
		if err := errors.Join(ctx.Err(), u.admin.List(ctx, &list)); err != nil {
			return err
		}
		for _, s := range list.Items {
			if slices.ContainsFunc(s.Clients, func(c v1alpha1.ServedClient) bool { return c.UID == pod && slices.Equal(c.Addresses, texts(addrs)) }) {
				return nil
			}
		}
	}
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// view is the observed and the desired state, as lines.
type view struct {
	have, want []string
}

func (v *view) has(format string, args ...any) { v.have = append(v.have, fmt.Sprintf(format, args...)) }
func (v *view) wants(format string, args ...any) {
	v.want = append(v.want, fmt.Sprintf(format, args...))
}

// agree compares the Egresses and pods with the operator's objects, the daemon's records, and the pods' tunnels.
func (u *egressUsers) agree() error {
	ctx, pods := u.t.Context(), &corev1.PodList{}
	if err := u.admin.List(ctx, pods); err != nil {
		return err
	}
	of := map[string]*corev1.Pod{}
	for i := range pods.Items {
		of[pods.Items[i].Name] = &pods.Items[i]
	}
	errs := oracle.EgressObjects(ctx, u.admin, u.running(of), func(e types.NamespacedName) int { return len(u.gateways[e.Name]) })
	var v view
	u.wantTunnels(&v, of)
	u.wantOwned(&v)
	for _, name := range u.api.Names() {
		if strings.Contains(name, " internet/") && !strings.HasPrefix(name, "events ") && !strings.HasPrefix(name, "egressclientslices ") {
			v.has("%s", name)
		}
	}
	if err := u.haveTunnels(&v); err != nil {
		return err
	}
	slices.Sort(v.have)
	slices.Sort(v.want)
	if missing, stray := without(v.want, v.have), without(v.have, v.want); len(missing)+len(stray) > 0 || len(v.have) != len(v.want) {
		errs = append(errs, fmt.Errorf("missing:\n\t%s\nin their place:\n\t%s", strings.Join(missing, "\n\t"), strings.Join(stray, "\n\t")))
	}
	return errors.Join(errs...)
}

// running returns the pods on the node, by UID.
func (u *egressUsers) running(of map[string]*corev1.Pod) map[string]*labnode.Pod {
	p := &u.n.pods
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]*labnode.Pod{}
	for name, s := range p.live {
		all[string(of[name].UID)] = &labnode.Pod{ContainerID: s.container, Addrs: s.addresses}
	}
	return all
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// wantTunnels adds the desired tunnels of pods on the node.
func (u *egressUsers) wantTunnels(v *view, of map[string]*corev1.Pod) {
	p := &u.n.pods
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.live {
		w, person := u.wishes[name]
		if !person {
			v.wants("%s forwards", s.container)
			continue
		}
		var uses []*v1alpha1.Egress
		if dc, selects := u.egresses["dc"]; w.pays && selects {
			uses = append(uses, dc)
		}
		if named, is := u.egresses[w.named]; is {
			uses = append(uses, named)
		}
		for _, e := range uses {
			v.wants("%s has tunnels of Egress %s: %v by %v", s.container, e.Name, e.Spec.Destinations, u.addressesOf(e.Name, of))
			v.wants("%s has a record of Egress %s %s", s.container, e.Name, e.UID)
		}
	}
}

// wantOwned adds the desired objects of Egresses, until garbage is collected.
func (u *egressUsers) wantOwned(v *view) {
	for name := range u.egresses {
		v.wants("egresses internet/%s", name)
	}
	for name, gateways := range u.gateways {
		v.wants("replicasets internet/%s-rs", name)
		for _, kind := range []string{"serviceaccounts", "roles", "rolebindings", "services", "deployments"} {
			v.wants("%s internet/%s", kind, name)
		}
		for _, g := range gateways {
			v.wants("pods internet/%s", g)
		}
		if e := u.egresses[name]; e != nil && e.Spec.PodDisruptionBudget != nil {
			v.wants("poddisruptionbudgets internet/%s", name)
		}
	}
}

// addressesOf returns the addresses of an Egress's gateways, or of one gateway.
func (u *egressUsers) addressesOf(name string, of map[string]*corev1.Pod) (out [][]string) {
	for _, g := range append(slices.Clone(u.gateways[name]), name) {
		if o := of[g]; o != nil {
			var list []string
			for _, ip := range o.Status.PodIPs {
				list = append(list, ip.IP)
			}
			out = append(out, list)
		}
	}
	slices.SortFunc(out, slices.Compare)
	return out
}

// haveTunnels adds the observed tunnels in pods and records.
func (u *egressUsers) haveTunnels(v *view) error {
	w, _ := u.n.daemon()
	records, err := records(u.n.dir(w.number))
	if err != nil {
		return err
	}
	tunnels := u.n.tunnels.Clients()
	for _, r := range records {
		if r.Egress == nil {
			continue
		}
		if r.Egress.Forward && u.n.tunnels.Forwards(r.Netns.Path) == nil {
			v.has("%s forwards", r.Key.ContainerID)
		}
		for _, e := range r.Egress.Egresses {
			v.has("%s has a record of Egress %s %s%s", r.Key.ContainerID, e.Name, e.UID, r.Egress.State)
		}
		for _, e := range tunnels[r.Netns.Path].Egresses {
			var gateways [][]string
			for _, g := range e.Gateways {
				gateways = append(gateways, texts(g.Addrs))
			}
			slices.SortFunc(gateways, slices.Compare)
			v.has("%s has tunnels of Egress %s: %v by %v", r.Key.ContainerID, strings.TrimPrefix(e.Name, "internet/"), e.Destinations, gateways)
		}
		delete(tunnels, r.Netns.Path)
	}
	for path := range tunnels {
		v.has("tunnels in %s without a record", path)
	}
	return nil
}
