package nodeenis

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/watched"
)

// podsByNode is the field by which the cache, which has at least the pods that wait for
// an address, finds those of a node.
const podsByNode = "node"

func nodeOfPod(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }

// waitingPods counts a node's pods that wait and are not in used. It reads from
// memory alone.
func (c *Controller) waitingPods(node string, used map[string]v1alpha1.UsedAddress) (n int) {
	pods := &corev1.PodList{}
	err := c.client.List(context.Background(), pods, client.MatchingFields{podsByNode: node}, client.UnsafeDisableDeepCopy)
	if err != nil || len(pods.Items) == 0 {
		return 0
	}
	have := reportedUIDs(used)
	for i := range pods.Items {
		if p := &pods.Items[i]; watched.Waits(p) && p.DeletionTimestamp == nil && !have[p.UID] && !hasFirst(p) {
			n++
		}
	}
	return n
}

// hasFirst tells whether a pod's first interface is one of its NICs, as far as its annotations
// tell: then it takes no address.
func hasFirst(p *corev1.Pod) bool {
	text := p.Annotations[v1alpha1.AnnotationNICs]
	if !strings.Contains(text, nicrequest.FirstInterface) {
		return false // as of nearly all, which need not be read
	}
	entries, _ := nicrequest.Parse(text)
	return slices.ContainsFunc(entries, func(e nicrequest.Entry) bool { return e.Name == nicrequest.FirstInterface })
}

// podEvents tells a node of each pod that comes to wait, or does so no more: one that
// got its address changes, or is deleted in what is watched.
func (c *Controller) podEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	// Where the cache has other pods too, theirs are no news.
	changed := func(o ...client.Object) {
		if slices.ContainsFunc(o, func(o client.Object) bool { return watched.Waits(o.(*corev1.Pod)) }) {
			c.podsChanged(nodeOfPod(o[0])[0])
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { changed(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { changed(e.ObjectNew, e.ObjectOld) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { changed(e.Object) },
	}
}
