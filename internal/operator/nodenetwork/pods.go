package nodenetwork

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
)

// pods are those that wait for an address, by node.
type pods struct {
	mu     sync.Mutex // guards byNode
	byNode map[string]map[types.UID]bool
}

// waiting counts a node's pods that wait and are not in used.
func (p *pods) waiting(node string, used map[string]v1alpha1.UsedAddress) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.byNode[node]
	if len(list) == 0 {
		return 0
	}
	have, n := reportedUIDs(used), 0
	for uid := range list {
		if !have[uid] {
			n++
		}
	}
	return n
}

func (p *pods) set(node string, uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode == nil {
		p.byNode = map[string]map[types.UID]bool{}
	}
	if p.byNode[node] == nil {
		p.byNode[node] = map[types.UID]bool{}
	}
	p.byNode[node][uid] = true
}

func (p *pods) drop(node string, uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byNode[node], uid)
	if len(p.byNode[node]) == 0 {
		delete(p.byNode, node)
	}
}

// podEvents keeps pods and tells the node of each one that comes or goes. The
// watch has only pods that wait, so one that got its address is deleted there.
func (c *Controller) podEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	gone := func(o client.Object) {
		if pod, ok := o.(*corev1.Pod); ok {
			c.pods.drop(pod.Spec.NodeName, pod.UID)
			c.podsChanged(pod.Spec.NodeName)
		}
	}
	came := func(o client.Object) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		if pod.DeletionTimestamp != nil {
			gone(o)
			return
		}
		c.pods.set(pod.Spec.NodeName, pod.UID)
		c.podsChanged(pod.Spec.NodeName)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { came(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { came(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { gone(e.Object) },
	}
}
