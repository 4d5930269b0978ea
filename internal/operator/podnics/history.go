package podnics

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// podHistory remembers which NICs pods have or had: a namespace's VPC and the operator's settings
// count for pods that come, not for those that are there. It learns it from PodNICs, and keeps it
// while the pod exists, as somebody may delete those.
type podHistory struct {
	api   *kubeAPI
	first nicrequest.First // of the operator's settings

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

func newPodHistory(api *kubeAPI, first nicrequest.First) *podHistory {
	return &podHistory{api: api, first: first, all: map[types.NamespacedName]hadNICs{}}
}

// add remembers the PodNICs with a pod's name, and returns all that is known of the pod.
func (h *podHistory) add(p *corev1.Pod, nics []v1alpha1.PodNIC) hadNICs {
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
		had.any, had.first = true, had.first || name == h.first.Name
	}
	if had.any {
		h.all[key] = had
	}
	return had
}

// forget drops what is remembered of a pod that is gone.
func (h *podHistory) forget(pod types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, pod)
}

// of is what is known of a pod by its PodNICs.
func (h *podHistory) of(ctx context.Context, p *corev1.Pod) (hadNICs, error) {
	if had := h.add(p, nil); had.any {
		return had, nil
	}
	nics, err := NICsOf(ctx, h.api.client, client.ObjectKeyFromObject(p))
	if err != nil {
		return hadNICs{}, err
	}
	return h.add(p, nics), nil
}

// request is what a pod's annotations ask for if its namespace names a VPC, read with the first
// interface that the pod came with.
func (h *podHistory) request(ctx context.Context, p *corev1.Pod, vpc string) (request, error) {
	had, err := h.of(ctx, p)
	if err != nil {
		return request{}, err
	}
	return requestOf(p, vpc, h.firstOf(ctx, p, had), false, 0), nil
}

// firstOf is the first interface of a pod with NICs in a VPC.
func (h *podHistory) firstOf(ctx context.Context, p *corev1.Pod, had hadNICs) func(vpc string) nicrequest.First {
	return func(vpc string) nicrequest.First {
		return had.firstOf(p, h.first.In(h.api.vpc(ctx, vpc).Spec.Provider))
	}
}

// firstOf is the first interface of a pod. Of a pod that runs it is what it was when the pod came,
// whatever the operator's settings say by now.
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
