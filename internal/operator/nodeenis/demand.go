package nodeenis

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// demand is since when more pods wait on a node than it has free addresses.
type demand struct {
	since     time.Time // zero: no more than there are
	available int       // how many addresses were published then
}

// update takes the counts of now. If demand has ended because addresses were published, and not
// because pods went, it returns when the demand began.
func (d *demand) update(waiting, free, available int, now time.Time) (served time.Time) {
	switch {
	case waiting > free:
		if d.since.IsZero() {
			*d = demand{now, available}
		}
	case !d.since.IsZero():
		if available > d.available {
			served = d.since
		}
		d.since = time.Time{}
	}
	return served
}

// trackDemand updates demand, and reports how long it lasted if it was served.
func (n *node) trackDemand() {
	now := n.c.now()
	n.mu.Lock()
	since := n.state.demand.update(n.usage().Waiting, n.state.counter().free(), len(n.state.obj.Spec.IPAM.Available), now)
	n.mu.Unlock()
	if !since.IsZero() && n.c.o.DemandServed != nil {
		n.c.o.DemandServed(now.Sub(since))
	}
}

// podsByNode is the field by which the cache finds the pods of a node. The cache has at least
// those that wait for an address.
const podsByNode = "node"

// waitingPods counts a node's pods that wait and are not in used. It reads the cache.
func (c *Controller) waitingPods(node string, used map[string]v1alpha1.UsedAddress) (n int) {
	pods, err := objects.List[corev1.PodList](context.Background(), c.client, client.MatchingFields{podsByNode: node})
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

// hasFirst tells whether a pod's first interface is one of its NICs, by its annotations: then the
// pod takes no address.
func hasFirst(p *corev1.Pod) bool {
	text := p.Annotations[v1alpha1.AnnotationNICs]
	if !strings.Contains(text, nicrequest.FirstInterface) {
		return false // nearly all pods: the list need not be parsed
	}
	entries, _ := nicrequest.Parse(text)
	return slices.ContainsFunc(entries, func(e nicrequest.Entry) bool { return e.Name == nicrequest.FirstInterface })
}

// podChanged tells a node of each pod that comes to wait, or does so no more: one that
// got its address changes, or is deleted from what is watched. Other pods, which the cache may
// have too, do not matter.
func (c *Controller) podChanged(_ context.Context, before, after client.Object, _ queue.Adder) {
	for _, o := range []client.Object{after, before} {
		if p, ok := o.(*corev1.Pod); ok && watched.Waits(p) {
			c.waitingChanged(p.Spec.NodeName)
			return
		}
	}
}
