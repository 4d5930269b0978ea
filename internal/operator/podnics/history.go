package podnics

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// past is what pods have, or had, that a namespace's VPC or the operator's settings were for
// when they came: what these say by now is for pods that come. It is read from PodNICs, and
// remembered while the pod is there, as somebody may delete those.
type past struct {
	mu  sync.Mutex // guards all
	all map[types.NamespacedName]hadNICs
}

// hadNICs is what one pod has, or had.
type hadNICs struct {
	uid   types.UID
	vpc   string // of PodNICs of its own; empty: it had none
	first bool   // a PodNIC was its first interface
	any   bool   // it had PodNICs, of its own or that it names
}

func newPast() *past { return &past{all: map[types.NamespacedName]hadNICs{}} }

// note takes in the PodNICs of a pod's name, and returns all that is known of the pod.
func (h *past) note(p *corev1.Pod, nics []v1alpha1.PodNIC, first string) hadNICs {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := client.ObjectKeyFromObject(p)
	had := h.all[key]
	if had.uid != p.UID { // another pod of its name
		had = hadNICs{uid: p.UID}
	}
	for i := range nics {
		var name string
		o := &nics[i]
		switch own, holder := o.Spec.Pod, o.Status.Pod; {
		case own != nil && own.UID == string(p.UID):
			name, had.vpc = o.Spec.Interface, o.Spec.VPC
		case own == nil && holder != nil && holder.UID == string(p.UID):
			name = o.Status.Interface
		default:
			continue
		}
		had.any, had.first = true, had.first || name == first
	}
	if had.any {
		h.all[key] = had
	}
	return had
}

// forget drops the pod of a name, which is no more.
func (h *past) forget(pod types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, pod)
}

// pastOf is what is known of a pod by its PodNICs.
func (c *Controller) pastOf(ctx context.Context, p *corev1.Pod) (hadNICs, error) {
	if had := c.past.note(p, nil, c.o.First.Name); had.any {
		return had, nil
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.InNamespace(p.Namespace), client.MatchingFields{byPod: p.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return hadNICs{}, fmt.Errorf("list PodNICs of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return c.past.note(p, list.Items, c.o.First.Name), nil
}

// wishNow is what a pod's annotations ask for by now, if its namespace had a VPC, by what the pod
// had when it came.
func (c *Controller) wishNow(ctx context.Context, p *corev1.Pod, vpc string) (wish, error) {
	had, err := c.pastOf(ctx, p)
	if err != nil {
		return wish{}, err
	}
	return wishOf(p, vpc, c.firstOf(ctx, p, had), false, 0), nil
}

// firstOf is the first interface of a pod with NICs in a VPC.
func (c *Controller) firstOf(ctx context.Context, p *corev1.Pod, had hadNICs) func(vpc string) nicrequest.First {
	return func(vpc string) nicrequest.First {
		return had.firstOf(p, c.o.First.In(c.vpc(ctx, vpc).Spec.Provider))
	}
}

// firstOf is the first interface of a pod: that of one which runs is what it was when the pod
// came, whatever the operator's settings say by now.
func (had hadNICs) firstOf(p *corev1.Pod, says nicrequest.First) nicrequest.First {
	came := p.Status.Phase != corev1.PodPending // so it has all that it was made with
	switch {
	case had.first:
		says.IsPort = !says.MayBePort // by its name alone
	case came && had.any:
		says.IsPort, says.MayBePort = false, false
	case came:
		says.MayBePort = false
	}
	return says
}
