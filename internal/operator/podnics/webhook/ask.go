package webhook

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
)

// asker has pods ask the scheduler for as many branch interfaces as they will have.
type asker struct {
	decoder admission.Decoder
	// cached is asked first. It trails, so live is asked before a pod is believed to be in
	// no VPC.
	cached, live client.Reader
	first        nicrequest.First
	clock        clock.Clock
	metrics      *Metrics
}

// Handle implements admission.Handler for pods that are made. What cannot be found out
// changes nothing.
func (a asker) Handle(ctx context.Context, q admission.Request) admission.Response {
	began := a.clock.Now()
	answer, outcome := a.answer(ctx, q)
	a.metrics.reviewed(ofBranches, outcome, a.clock.Now().Sub(began))
	return answer
}

func (a asker) answer(ctx context.Context, q admission.Request) (admission.Response, string) {
	p := &corev1.Pod{}
	if err := a.decoder.Decode(q, p); err != nil {
		return unjudged(fmt.Errorf("read the pod: %w", err)), outcomeError
	}
	branches, known, err := a.count(ctx, a.cached, p, q.Namespace)
	if err == nil && !known {
		branches, _, err = a.count(ctx, a.live, p, q.Namespace)
	}
	if err != nil {
		return unjudged(err), outcomeError
	}
	first := lacks(p, branches)
	if first == 0 {
		return admission.Allowed(""), outcomeAllowed
	}
	changed, err := edited(q.Object.Raw, request(first))
	if err != nil {
		return unjudged(err), outcomeError
	}
	return admission.PatchResponseFromRaw(q.Object.Raw, changed), outcomeChanged
}

// count is how many branch interfaces a pod of a namespace will have, and whether the VPC
// that it names is known.
func (a asker) count(ctx context.Context, r client.Reader, p *corev1.Pod, in string) (branches int, known bool, err error) {
	ns, err := namespace(ctx, r, in)
	if err != nil {
		return 0, false, err
	}
	of := asking(p, ns)
	name, errs := of.VPC()
	if name == "" || len(errs) > 0 {
		return 0, false, nil
	}
	v, err := vpc(ctx, r, name)
	if err != nil {
		return 0, false, err
	}
	return branchesOf(of, v, a.first), v != nil, nil
}
