package clients

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.egressclient.make.before", "operator.egressclient.make.after", "operator.egressclient.change.before", "operator.egressclient.change.after",
	"operator.egressclient.remove.before", "operator.egressclient.remove.after", "operator.egressclient.ready.before", "operator.egressclient.ready.after",
	"operator.egressclient.slice.before", "operator.egressclient.slice.after", "operator.egressclient.drop.before", "operator.egressclient.drop.after",
	"operator.egressclient.status.before", "operator.egressclient.status.after",
)

// Options configure a Controller. All fields are optional; the comments give the defaults.
type Options struct {
	Namespace string       // Berth's own namespace; "" if unknown
	May       May          // nil: any node may give a pod any address
	Clock     clock.Clock  // the system clock
	Logger    *slog.Logger // none
	Metrics   *Metrics     // metrics that are not registered
}

const (
	// podWorkers and egressWorkers are how many objects are reconciled concurrently. They mostly
	// wait for the API server.
	podWorkers    = 16
	egressWorkers = 8
	// betweenWrites is the minimum interval between writes of an Egress's slices, so that one write
	// brings many clients to the gateways.
	betweenWrites = 50 * time.Millisecond
	// betweenCounts is the same for the client counts in an Egress's status, which are for humans.
	betweenCounts = time.Second
	// If a change of an Egress or a namespace may affect many pods, atOnce of them are reconciled
	// immediately and the others one by one, spaced by apart, so that they do not delay starting
	// pods.
	atOnce = 200
	apart  = time.Millisecond
)

// Controller decides which pods are clients of which Egresses.
type Controller struct {
	reader   *reader
	state    *state
	queues   *queues
	pods     *pods
	egresses *egresses
}

// Setup adds the controllers to mgr, whose cache must have been created with Watches and Index.
// They run while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	r := &reader{client: mgr.GetClient(), live: mgr.GetAPIReader(), may: o.May, clock: o.Clock}
	w := writer{client: mgr.GetClient(), metrics: o.Metrics}
	st, q := newState(o.Clock, o.Namespace), &queues{}
	c := &Controller{
		reader: r, state: st, queues: q,
		pods:     &pods{reader: r, state: st, queues: q, writer: w, events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), log: o.Logger, written: map[types.NamespacedName]string{}},
		egresses: &egresses{reader: r, state: st, queues: q, writer: w},
	}
	err := errors.Join(
		q.pods.Complete(ctrl.NewControllerManagedBy(mgr).Named("egressclient").
			Watches(&corev1.Pod{}, queue.OnChange(c.podChanged)).
			Watches(&v1alpha1.EgressClient{}, queue.OnChange(c.clientChanged)).
			WatchesMetadata(watched.Namespace(""), queue.OnChange(c.namespaceChanged)), podWorkers, c.pods.reconcile),
		q.egresses.Complete(ctrl.NewControllerManagedBy(mgr).Named("egressclients").For(&v1alpha1.Egress{}).
			Watches(&v1alpha1.EgressClientSlice{}, queue.OnChange(c.sliceChanged)), egressWorkers, c.egresses.reconcile),
	)
	if err != nil {
		return nil, fmt.Errorf("set up Egress client controllers: %w", err)
	}
	return c, nil
}

// queues are the workqueues of the two controllers.
type queues struct{ pods, egresses queue.Queue }

// addPods queues pods. If there are many, some are delayed.
func (q *queues) addPods(keys []types.NamespacedName) {
	for i, k := range keys {
		q.pods.AddObject(k, time.Duration(max(0, i-atOnce))*apart)
	}
}

func (q *queues) addEgresses(refs []membership.Ref) {
	for _, ref := range refs {
		q.egresses.AddObject(types.NamespacedName(ref), 0)
	}
}

// podChanged queues a pod if a relevant part of it changed, and the pods that claim its current or
// previous addresses.
func (c *Controller) podChanged(ctx context.Context, before, after client.Object, q queue.Adder) {
	had, _ := before.(*corev1.Pod)
	has, _ := after.(*corev1.Pod)
	switch {
	case had == nil:
		q.Add(queue.RequestFor(has))
		c.addClaimants(ctx, q, addressesOf(has))
	case has == nil:
		q.Add(queue.RequestFor(had))
		c.addClaimants(ctx, q, addressesOf(had))
	default:
		old, now := addressesOf(had), addressesOf(has)
		moved := !slices.Equal(old, now)
		if moved || had.UID != has.UID || had.Spec.NodeName != has.Spec.NodeName || (had.DeletionTimestamp == nil) != (has.DeletionTimestamp == nil) ||
			!maps.Equal(had.Labels, has.Labels) || !maps.Equal(had.Annotations, has.Annotations) {
			q.Add(queue.RequestFor(has))
		}
		if moved {
			c.addClaimants(ctx, q, append(old, now...))
		}
	}
}

// clientChanged queues the pod of an EgressClient, and the pods that claim addresses that its node
// reports or reported.
func (c *Controller) clientChanged(ctx context.Context, before, after client.Object, q queue.Adder) {
	var had, has []string
	if o, ok := before.(*v1alpha1.EgressClient); ok {
		had = reportedAddresses(o)
	}
	if o, ok := after.(*v1alpha1.EgressClient); ok {
		has = reportedAddresses(o)
	}
	q.Add(queue.RequestFor(either(before, after)))
	if !slices.Equal(had, has) {
		c.addClaimants(ctx, q, append(had, has...))
	}
}

// either returns after, or before if after is nil.
func either(before, after client.Object) client.Object {
	if after != nil {
		return after
	}
	return before
}

// addClaimants queues the pods for which nodes report these addresses.
func (c *Controller) addClaimants(ctx context.Context, q queue.Adder, addresses []string) {
	for _, a := range addresses {
		list, err := objects.List[v1alpha1.EgressClientList](ctx, c.reader.client, client.MatchingFields{byAddress: a})
		if err != nil {
			return
		}
		for i := range list.Items {
			q.Add(queue.RequestFor(&list.Items[i]))
		}
	}
}

// namespaceChanged queues the pods affected by a change of a namespace: its own pods that name
// Egresses; all of its own if the set of Egresses that may select them changed; and pods of other
// namespaces if its Egresses may no longer, or may now, select them. It also queues the Egresses whose
// status mentions the namespace's consent.
func (c *Controller) namespaceChanged(ctx context.Context, before, after client.Object, _ queue.Adder) {
	var had, has *membership.Namespace // nil if the namespace did not exist, or was deleted
	if before != nil {
		n := membership.ReadNamespace(before)
		had = &n
	}
	if after != nil {
		n := membership.ReadNamespace(after)
		has = &n
	}
	if had != nil && has != nil && had.Same(*has) {
		return
	}
	name := either(before, after).GetName()
	was, is := c.state.setGrant(name, has != nil && has.Granted())
	var lacked, lacks []membership.Ref
	if had != nil {
		lacked = was.Selectors().MissingConsent(*had)
	}
	if has != nil {
		lacks = is.Selectors().MissingConsent(*has)
	}
	refs := slices.DeleteFunc(slices.Concat(lacked, lacks), func(r membership.Ref) bool { return slices.Contains(lacked, r) && slices.Contains(lacks, r) })
	if was.Selectors().Granted(name) != is.Selectors().Granted(name) {
		all := append(was.Selectors().Active(name), is.Selectors().Active(name)...)
		if keys, err := c.reader.affected(ctx, all, was, is); err == nil {
			c.queues.addPods(keys)
		}
		refs = append(refs, all...)
	}
	c.state.forgetConsent(refs)
	c.queues.addEgresses(refs)
	if has == nil {
		return
	}
	only := []client.ListOption{client.InNamespace(name)}
	if had != nil && slices.Equal(was.Selectors().Of(*had), is.Selectors().Of(*has)) {
		only = append(only, client.MatchingFields{byEgress: annotated})
	}
	if keys := newPodKeys(); c.reader.addPods(ctx, keys, only...) == nil {
		c.queues.addPods(keys.all())
	}
}

// sliceChanged queues the Egress of a slice.
func (c *Controller) sliceChanged(_ context.Context, before, after client.Object, q queue.Adder) {
	ref := refOfSlice(either(before, after))
	if after == nil {
		c.state.sliceGone(ref, before.GetName(), before.GetUID())
	}
	q.Add(reconcile.Request{NamespacedName: types.NamespacedName(ref)})
}

// Known returns how many pods are known. It takes the lock that all work needs: if it does not return,
// the controller hangs.
func (c *Controller) Known() int { return c.state.podCount() }

// Berth's own kinds that the cache keeps for clients, in addition to Egresses.
var (
	EgressClients      = watched.Of(&v1alpha1.EgressClient{}, &v1alpha1.EgressClientList{}, nil)
	EgressClientSlices = watched.Of(&v1alpha1.EgressClientSlice{}, &v1alpha1.EgressClientSliceList{}, nil)
)

// Watches returns the kinds that the cache of a manager used with Setup must watch.
func Watches() []*watched.Kind {
	return append([]*watched.Kind{watched.Namespaces, watched.EgressPods, egress.Egresses, EgressClients, EgressClientSlices}, egress.Makers...)
}

// Index fields of the cache.
const (
	byEgress  = "egress"        // pods by the Egresses they name, EgressClients by those they use or are refused, slices by their Egress
	byAddress = "egressaddress" // pods by their addresses, EgressClients by those their nodes report
)

// annotated is an additional value of byEgress for pods that name any Egress.
const annotated = "*"

// Index adds this package's index fields to the cache. It is called once per manager, before the
// manager starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix,
		watched.By(byEgress, namedBy), watched.By(byAddress, addressesOf),
		watched.By(byEgress, usedBy), watched.By(byAddress, reportedAddresses),
		watched.ByOne(byEgress, func(o *v1alpha1.EgressClientSlice) string { return refOfSlice(o).String() }),
	)
}

// namedBy returns the Egresses that a pod's annotations name, those of Coil included.
func namedBy(p *corev1.Pod) (out []string) {
	former := membership.NamedForCoil(p.Annotations)
	if !membership.Annotated(p.Annotations) && len(former) == 0 {
		return nil
	}
	named, _ := membership.Named(p.Annotations)
	for _, ref := range slices.Concat(named, former) {
		out = append(out, ref.String())
	}
	return append(out, annotated)
}

// usedBy returns the Egresses that a pod uses or is refused.
func usedBy(o *v1alpha1.EgressClient) []string {
	all := map[string]bool{}
	for _, r := range o.Spec.Egresses {
		all[r.Namespace+"/"+r.Name] = true
	}
	for _, r := range o.Spec.Refused {
		all[r.Namespace+"/"+r.Name] = true
	}
	return slices.Collect(maps.Keys(all))
}

// addressesOf returns a pod's addresses as reported by its kubelet. A pod without a sandbox has none:
// the kubelet still reports those of the last sandbox.
func addressesOf(p *corev1.Pod) (out []string) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse {
			return nil
		}
	}
	for _, ip := range p.Status.PodIPs {
		if a := canonical(ip.IP); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// canonical returns an address in netip's notation, so that texts can be compared, or "" if it is invalid.
func canonical(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return a.Unmap().String()
}

// reportedAddresses returns the pod's source addresses as reported by its node's daemon.
func reportedAddresses(o *v1alpha1.EgressClient) (out []string) {
	n := o.Status.Node
	if n == nil || n.State == v1alpha1.EgressClientGone {
		return nil
	}
	for _, ip := range n.Addresses {
		if a := canonical(ip); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// refOfSlice returns the Egress that a slice belongs to.
func refOfSlice(o client.Object) membership.Ref {
	return membership.Ref{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.LabelEgress]}
}

// uidOfOwner returns the UID of the Egress that owns a slice.
func uidOfOwner(o client.Object) string {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Egress" {
			return string(ref.UID)
		}
	}
	return ""
}
