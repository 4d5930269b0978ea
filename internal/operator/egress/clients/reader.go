package clients

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// waitsLong is how long a node may take for a client before an Egress says that one waits.
const waitsLong = 30 * time.Second

// scene is what is true of a pod at one moment.
type scene struct {
	pod       *corev1.Pod            // nil: it is gone, or has ended
	o         *v1alpha1.EgressClient // that is this pod's; nil: there is none
	egresses  clientplan.Egresses
	is        clientplan.Pod // as far as it decides
	decision  clientplan.Decision
	conflict  string // why its addresses are not its own
	elsewhere string // which of them are not confirmed
	foreign   bool   // the node may not give it the address, as is known now
	// addresses are those at which gateways may serve it, if it may use any.
	addresses []string
	// since is when its node said an address that its kubelet does not say yet; zero: it says none, or the kubelet does.
	since time.Time
}

// runtimeUID is the UID by which the runtime knows a pod; that of a static one is told by
// its mirror.
func runtimeUID(p *corev1.Pod) string {
	if uid := p.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return uid
	}
	return string(p.UID)
}

// see finds out what is true of a pod. o may be another pod's of its name.
func (c *Controller) see(ctx context.Context, p *corev1.Pod, namespace membership.Namespace, o *v1alpha1.EgressClient, all clientplan.Egresses, served isServed) (s scene, err error) {
	s = scene{pod: p, egresses: all}
	if p == nil {
		return s, nil
	}
	gateway, err := egress.IsGateway(ctx, c.client, c.live, p)
	if err != nil {
		return s, err
	}
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	s.is = clientplan.Pod{
		Namespace: namespace, Labels: p.Labels, Annotations: p.Annotations,
		HostNetwork: p.Spec.HostNetwork, Static: static, Gateway: gateway,
	}
	if p.Spec.NodeName != "" { // it is told once it has one
		s.decision = clientplan.Decide(s.is, all)
	}
	if o == nil || o.Spec.PodUID != runtimeUID(p) {
		return s, nil
	}
	s.o = o
	if len(s.decision.Egresses) > 0 {
		if err = c.confirm(ctx, &s, served); err != nil {
			return s, err
		}
		s.conflict, err = c.conflict(ctx, p, s.addresses, served)
	}
	return s, err
}

// entry is what the pod is to its Egresses.
func (s scene) entry(now time.Time) entry {
	if s.pod == nil {
		return entry{}
	}
	e := entry{uid: string(s.pod.UID), since: s.since}
	for _, r := range s.decision.Egresses {
		st := standing{ref: membership.Ref{Namespace: r.Namespace, Name: r.Name}, uid: r.UID}
		if s.serves(r) {
			st.client = &v1alpha1.ServedClient{UID: e.uid, Pod: s.pod.Namespace + "/" + s.pod.Name, Addresses: s.addresses}
		} else {
			st.stuck = s.stuck(now)
		}
		e.standings = append(e.standings, st)
	}
	for _, r := range s.decision.Refused {
		ref := membership.Ref{Namespace: r.Namespace, Name: r.Name}
		if of := s.egresses.Get(ref); of != nil {
			e.standings = append(e.standings, standing{ref: ref, uid: of.UID, refused: r.Reason})
		}
	}
	return e
}

// serves tells whether gateways of an Egress are to serve the pod: from when the node has
// set up its tunnels, and while it changes or mends them.
func (s scene) serves(r v1alpha1.EgressReference) bool {
	if s.o == nil || s.o.DeletionTimestamp != nil || s.conflict != "" || len(s.addresses) == 0 {
		return false
	}
	node := s.o.Status.Node
	return node.State == v1alpha1.EgressClientSetUp || node.State == v1alpha1.EgressClientFailed && slices.Contains(node.Egresses, r)
}

// stuck is why a pod is not served although it uses Egresses; empty: it comes on.
func (s scene) stuck(now time.Time) string {
	reason, _ := s.waits()
	if reason == reasonWaiting && now.Before(s.waitsUntil()) {
		return ""
	}
	return reason
}

// waitsUntil is when a pod that waits for its node has waited for long.
func (s scene) waitsUntil() time.Time {
	since := s.pod.CreationTimestamp.Time
	if s.o != nil {
		since = s.o.CreationTimestamp.Time
		if c := meta.FindStatusCondition(s.o.Status.Conditions, conditionReady); c != nil {
			since = c.LastTransitionTime.Time
		}
	}
	return since.Add(waitsLong)
}

// key is that of a pod.
func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}
