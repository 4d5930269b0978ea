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

// podHistory remembers which NICs pods have or had: a namespace's VPC and the operator's settings apply to new pods, not to
// existing ones. It is built from PodNICs and kept while the pod exists, as somebody may delete these.
type podHistory struct {
	api   *kubeAPI
	first nicrequest.First // first interface according to the operator's settings

	mu  sync.Mutex // guards all
	all map[types.NamespacedName]hadNICs
}

// hadNICs describes the NICs that a pod has or had.
type hadNICs struct {
	uid   types.UID
	vpc   string // VPC of PodNICs created for the pod; "" if there were none
	first bool   // whether a PodNIC was its first interface
	any   bool   // whether it had PodNICs, created for it or named by it
}

func newPodHistory(api *kubeAPI, first nicrequest.First) *podHistory {
	return &podHistory{api: api, first: first, all: map[types.NamespacedName]hadNICs{}}
}

// add remembers the PodNICs with a pod's name, and returns everything known about the pod.
func (h *podHistory) add(p *corev1.Pod, nics []v1alpha1.PodNIC) hadNICs {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := client.ObjectKeyFromObject(p)
	had := h.all[key]
	if had.uid != p.UID { // the pod was recreated
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

// forget drops the state of a deleted pod.
func (h *podHistory) forget(pod types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, pod)
}

// of returns the history of a pod.
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

// request returns what a pod's annotations ask for if its namespace names a VPC, based on the first interface that the pod
// started with.
func (h *podHistory) request(ctx context.Context, p *corev1.Pod, vpc string) (request, error) {
	had, err := h.of(ctx, p)
	if err != nil {
		return request{}, err
	}
	return requestOf(p, vpc, h.firstOf(ctx, p, had), false, 0), nil
}

// firstOf returns the first interface of a pod with NICs in a VPC.
func (h *podHistory) firstOf(ctx context.Context, p *corev1.Pod, had hadNICs) func(vpc string) nicrequest.First {
	return func(vpc string) nicrequest.First {
		return had.firstOf(p, h.first.In(h.api.vpc(ctx, vpc).Spec.Provider))
	}
}

// firstOf returns the first interface of a pod. For a running pod it is what it was when the pod started, whatever the
// operator's settings are now.
func (had hadNICs) firstOf(p *corev1.Pod, says nicrequest.First) nicrequest.First {
	came := p.Status.Phase != corev1.PodPending // it has all the NICs it was created with
	switch {
	case had.first:
		says.IsPort = !says.MayBePort // recognized only by its name
	case came && had.any:
		says.IsPort, says.MayBePort = false, false
	case came:
		says.MayBePort = false
	}
	return says
}
