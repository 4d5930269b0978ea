package clients

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// waitsLong is how long a node may take to set up a client before the Egress reports the delay.
const waitsLong = 30 * time.Second

// May reports whether, as far as is known, the node of a pod may give it an address.
type May func(ctx context.Context, p *corev1.Pod, address netip.Addr) (bool, error)

// reader determines the current view of pods from the cache.
type reader struct {
	client client.Reader // the cache
	live   client.Reader // the API server
	may    May           // nil: any node may give a pod any address
	clock  clock.Clock
}

// pod returns a pod from the cache, or nil if it is gone or has ended.
func (r *reader) pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	p, err := objects.Get[corev1.Pod](ctx, r.client, key, objects.Shared)
	if err != nil || p == nil || ended(p) {
		return nil, err
	}
	return p, nil
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// runtimeUID returns the UID by which the container runtime knows a pod. For a mirror pod, this is the
// UID of its static pod.
func runtimeUID(p *corev1.Pod) string {
	if uid := p.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return uid
	}
	return string(p.UID)
}

// namespaces returns all namespaces in the cache.
func (r *reader) namespaces(ctx context.Context) ([]membership.Namespace, error) {
	list := watched.Namespaces.List().(*metav1.PartialObjectMetadataList)
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Namespaces: %w", err)
	}
	out := make([]membership.Namespace, len(list.Items))
	for i := range list.Items {
		out[i] = membership.ReadNamespace(&list.Items[i])
	}
	return out, nil
}

// namespace returns a namespace from the cache, or one with only its name if it is not cached.
func (r *reader) namespace(ctx context.Context, name string) membership.Namespace {
	ns := watched.Namespace(name)
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, ns, client.UnsafeDisableDeepCopy); err != nil {
		return membership.Namespace{Name: name}
	}
	return membership.ReadNamespace(ns)
}

// podKeys is a set of pod keys, ordered so that starting pods, which have no address yet, come first.
type podKeys struct {
	starting, others []types.NamespacedName
	has              map[types.NamespacedName]bool
}

func newPodKeys() *podKeys { return &podKeys{has: map[types.NamespacedName]bool{}} }

func (k *podKeys) add(o client.Object, starting bool) {
	key := client.ObjectKeyFromObject(o)
	switch {
	case k.has[key]:
		return
	case starting:
		k.starting = append(k.starting, key)
	default:
		k.others = append(k.others, key)
	}
	k.has[key] = true
}

func (k *podKeys) all() []types.NamespacedName { return append(k.starting, k.others...) }

// addPods adds the pods selected by list options.
func (r *reader) addPods(ctx context.Context, into *podKeys, of ...client.ListOption) error {
	list, err := objects.List[corev1.PodList](ctx, r.client, of...)
	if err != nil {
		return err
	}
	for i := range list.Items {
		into.add(&list.Items[i], len(list.Items[i].Status.PodIPs) == 0)
	}
	return nil
}

// addClients adds the pods that use or are refused an Egress.
func (r *reader) addClients(ctx context.Context, into *podKeys, ref membership.Ref) error {
	list, err := objects.List[v1alpha1.EgressClientList](ctx, r.client, client.MatchingFields{byEgress: ref.String()})
	if err != nil {
		return err
	}
	for i := range list.Items {
		into.add(&list.Items[i], false)
	}
	return nil
}

// affected returns the pods that may be affected when Egresses change their choice of clients: pods that
// name them, pods of namespaces in which they may select some, and pods that used them or were refused.
func (r *reader) affected(ctx context.Context, refs []membership.Ref, before, now clientplan.Egresses) ([]types.NamespacedName, error) {
	keys := newPodKeys()
	was, is := before.Selectors(), now.Selectors()
	var selecting []membership.Ref
	for _, ref := range refs {
		if err := r.addPods(ctx, keys, client.MatchingFields{byEgress: ref.String()}); err != nil {
			return nil, err
		}
		if was.IsActive(ref) || is.IsActive(ref) {
			selecting = append(selecting, ref)
		}
	}
	if len(selecting) > 0 {
		namespaces, err := r.namespaces(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range namespaces {
			if slices.ContainsFunc(selecting, func(r membership.Ref) bool { return was.Selects(r, n) || is.Selects(r, n) }) {
				if err := r.addPods(ctx, keys, client.InNamespace(n.Name)); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, ref := range refs {
		if err := r.addClients(ctx, keys, ref); err != nil {
			return nil, err
		}
	}
	return keys.all(), nil
}

// podView is a snapshot of everything known about a pod.
type podView struct {
	pod       *corev1.Pod            // nil if it is gone or has ended
	o         *v1alpha1.EgressClient // of this pod; nil if there is none
	egresses  clientplan.Egresses
	is        clientplan.Pod // input of the decision
	decision  clientplan.Decision
	conflict  string // why its addresses belong to another pod; "" if they are its own
	elsewhere string // which of its addresses are not confirmed; "" if all are
	foreign   bool   // whether its node reports an address that it may not give the pod, as far as is known
	// addresses are the addresses at which gateways may serve the pod, if it uses any Egress.
	addresses []string
	// since is when its node first reported an address that its kubelet does not report yet; zero if
	// the node reports none, or the kubelet reports them too.
	since time.Time
}

// view returns the view of a pod, which is nil if the pod is gone. o is the EgressClient of this name,
// and may belong to an earlier pod.
func (r *reader) view(ctx context.Context, p *corev1.Pod, namespace membership.Namespace, o *v1alpha1.EgressClient, all clientplan.Egresses, served isServed) (v podView, err error) {
	v = podView{pod: p, egresses: all}
	if p == nil {
		return v, nil
	}
	gateway, err := egress.IsGateway(ctx, r.client, r.live, p)
	if err != nil {
		return v, err
	}
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	v.is = clientplan.Pod{
		Namespace: namespace, Labels: p.Labels, Annotations: p.Annotations,
		HostNetwork: p.Spec.HostNetwork, Static: static, Gateway: gateway,
	}
	if p.Spec.NodeName != "" { // an unscheduled pod has no EgressClient
		v.decision = clientplan.Decide(v.is, all)
	}
	if o == nil || o.Spec.PodUID != runtimeUID(p) {
		return v, nil
	}
	v.o = o
	if len(v.decision.Egresses) > 0 {
		if err = r.confirm(ctx, &v, served); err != nil {
			return v, err
		}
		v.conflict, err = r.conflict(ctx, p, v.addresses, served)
	}
	return v, err
}

// uses returns the pod's uses of Egresses.
func (v podView) uses(now time.Time) podUses {
	if v.pod == nil {
		return podUses{}
	}
	e := podUses{uid: string(v.pod.UID), since: v.since}
	for _, r := range v.decision.Egresses {
		u := use{ref: membership.Ref{Namespace: r.Namespace, Name: r.Name}, uid: r.UID}
		if v.serves(r) {
			u.client = &v1alpha1.ServedClient{UID: e.uid, Pod: v.pod.Namespace + "/" + v.pod.Name, Addresses: v.addresses}
		} else {
			u.waiting = v.waitsFor(now)
		}
		e.uses = append(e.uses, u)
	}
	for _, r := range v.decision.Refused {
		ref := membership.Ref{Namespace: r.Namespace, Name: r.Name}
		if of := v.egresses.Get(ref); of != nil {
			e.uses = append(e.uses, use{ref: ref, uid: of.UID, refused: r.Reason})
		}
	}
	return e
}

// serves reports whether an Egress's gateways serve the pod: once the node has set up the tunnels, and
// while it changes or repairs them.
func (v podView) serves(r v1alpha1.EgressReference) bool {
	if v.o == nil || v.o.DeletionTimestamp != nil || v.conflict != "" || len(v.addresses) == 0 {
		return false
	}
	node := v.o.Status.Node
	return node.State == v1alpha1.EgressClientSetUp || node.State == v1alpha1.EgressClientFailed && slices.Contains(node.Egresses, r)
}

// waitsFor returns why a pod that uses Egresses has not been served for some time, or "" if it is served
// or has not waited long enough to report, or Coil serves it.
func (v podView) waitsFor(now time.Time) string {
	reason, _ := v.waits()
	if reason == reasonMigration || reason == reasonWaiting && now.Before(v.waitsUntil()) {
		return ""
	}
	return reason
}

// waitsUntil returns when a pod that waits for its node has waited too long.
func (v podView) waitsUntil() time.Time {
	since := v.pod.CreationTimestamp.Time
	if v.o != nil {
		since = v.o.CreationTimestamp.Time
		if c := meta.FindStatusCondition(v.o.Status.Conditions, conditionReady); c != nil {
			since = c.LastTransitionTime.Time
		}
	}
	return since.Add(waitsLong)
}

// isServed reports whether gateways serve a pod, and since when only its node has reported its
// addresses; since is zero if the kubelet has too, or neither has.
type isServed func(key types.NamespacedName, uid string) (served bool, since time.Time)

// confirm determines at which addresses gateways may serve a pod that has an EgressClient.
func (r *reader) confirm(ctx context.Context, v *podView, served isServed) error {
	_, since := served(client.ObjectKeyFromObject(v.pod), string(v.pod.UID))
	reported, has := reportedAddresses(v.o), addressesOf(v.pod)
	of := clientplan.Confirm(reported, has, since, r.clock.Now())
	v.addresses, v.since = of.Addresses, of.Since
	if len(has) == 0 && r.may != nil {
		for _, address := range of.Addresses {
			may, err := r.may(ctx, v.pod, netip.MustParseAddr(address))
			if err != nil {
				return err
			}
			if !may {
				v.addresses, v.foreign = nil, true
				v.elsewhere = fmt.Sprintf("the node reports that the pod sends from %s, which is none of the node's addresses for pods: gateways do not serve the pod there until its status has the address", address)
				break
			}
		}
	}
	if len(of.Elsewhere) > 0 {
		v.elsewhere = fmt.Sprintf("the node reports that the pod sends from %s, which is not among the addresses of the pod's status (%s): gateways do not serve the pod there", strings.Join(of.Elsewhere, " and "), strings.Join(has, ", "))
	}
	return nil
}

// conflict describes which other pod has one of the addresses at which a pod would be served; it
// returns "" if there is none.
func (r *reader) conflict(ctx context.Context, p *corev1.Pod, addresses []string, served isServed) (string, error) {
	mine := addressesOf(p)
	for _, address := range addresses {
		claims, err := r.claims(ctx, p, address, served)
		if err != nil {
			return "", err
		}
		if len(claims) == 0 {
			continue
		}
		me := claimOf(p, served)
		for _, a := range mine {
			me.Confirmed = me.Confirmed || a == address
		}
		if h := clientplan.Holder(append(claims, me)); h.UID != me.UID {
			return fmt.Sprintf("the node reports that the pod sends from %s, which is the address of pod %s: gateways do not serve it there while pod %[2]s has it", address, h.Pod), nil
		}
	}
	return "", nil
}

// claims returns the other live pods that have an address, or whose nodes report it.
func (r *reader) claims(ctx context.Context, p *corev1.Pod, address string, served isServed) ([]clientplan.Claim, error) {
	pods, err := objects.List[corev1.PodList](ctx, r.client, client.MatchingFields{byAddress: address})
	if err != nil {
		return nil, err
	}
	others, err := objects.List[v1alpha1.EgressClientList](ctx, r.client, client.MatchingFields{byAddress: address})
	if err != nil {
		return nil, err
	}
	var claims []clientplan.Claim
	has := map[types.UID]bool{p.UID: true}
	for i := range pods.Items {
		if q := &pods.Items[i]; !has[q.UID] {
			has[q.UID] = true
			claim := claimOf(q, served)
			claim.Confirmed = true
			claims = append(claims, claim)
		}
	}
	for i := range others.Items {
		o := &others.Items[i]
		q, err := objects.Get[corev1.Pod](ctx, r.client, client.ObjectKeyFromObject(o), objects.Shared)
		if err != nil || q == nil || has[q.UID] || runtimeUID(q) != o.Spec.PodUID {
			continue
		}
		has[q.UID] = true
		v := podView{pod: q, o: o}
		if err := r.confirm(ctx, &v, served); err != nil {
			return nil, err
		}
		if slices.Contains(v.addresses, address) {
			claims = append(claims, claimOf(q, served))
		}
	}
	return claims, nil
}

func claimOf(p *corev1.Pod, served isServed) clientplan.Claim {
	key := client.ObjectKeyFromObject(p)
	is, _ := served(key, string(p.UID))
	return clientplan.Claim{UID: string(p.UID), Pod: key.String(), Served: is, Created: p.CreationTimestamp.Time}
}
