package webhook

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/vpcport"
)

// judge answers requests of the API server.
type judge struct {
	decoder admission.Decoder
	// cached is asked first. It trails, so live is asked before anything is refused.
	cached, live client.Reader
	first        nicrequest.First
	clock        clock.Clock
	metrics      *Metrics
}

// Handle implements admission.Handler. What it cannot judge, it lets pass.
func (j judge) Handle(ctx context.Context, q admission.Request) admission.Response {
	do, resource := j.pod, ofPods
	switch q.Resource.Resource {
	case ofPods:
	case ofPodNICs:
		do, resource = j.nic, ofPodNICs
	default:
		return admission.Allowed("")
	}
	began := j.clock.Now()
	answer, outcome := j.answer(ctx, q, do)
	j.metrics.reviewed(resource, outcome, j.clock.Now().Sub(began))
	return answer
}

// answer is what one that judges has to say, and in a word.
func (j judge) answer(ctx context.Context, q admission.Request, do func(context.Context, client.Reader, admission.Request) (string, nicrequest.Errors, error)) (admission.Response, string) {
	missing, errs, err := do(ctx, j.cached, q)
	if err == nil && (len(errs) > 0 || missing != "") {
		missing, errs, err = do(ctx, j.live, q)
	}
	switch {
	case err != nil:
		return unjudged(err), outcomeError
	case len(errs) > 0:
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: errs.Err().Error(),
		}}}, outcomeRefused
	case missing != "":
		return admission.Allowed("").WithWarnings(nicrequest.Missing(missing)), outcomeWarned
	}
	return admission.Allowed(""), outcomeAllowed
}

// unjudged lets pass what could not be judged. An error would refuse it: the failure policy
// Ignore is for calls that fail, and not for what they answer (Kubernetes documentation, "Dynamic
// Admission Control").
func unjudged(err error) admission.Response {
	return admission.Allowed("").WithWarnings("berth-operator could not look at this: " + vpcport.Cut(err.Error(), maxWarning))
}

// maxWarning is how long a warning of an error may be, in bytes: an answer's are 4096 together
// at most, and should be 120 characters each (Kubernetes documentation, "Dynamic Admission Control").
const maxWarning = 200

// pod judges one that is made, or whose annotations are edited.
func (j judge) pod(ctx context.Context, r client.Reader, q admission.Request) (string, nicrequest.Errors, error) {
	p, before := &corev1.Pod{}, &corev1.Pod{}
	if err := j.decoder.Decode(q, p); err != nil {
		return "", nil, fmt.Errorf("read the pod: %w", err)
	}
	if p.DeletionTimestamp != nil {
		return "", nil, nil
	}
	ns, err := namespace(ctx, r, q.Namespace)
	if err != nil {
		return "", nil, err
	}
	of := nicrequest.Request{Pod: asking(p, ns), Namespace: q.Namespace, Labels: ns.Labels, First: j.first}
	if of.Edit = q.Operation == admissionv1.Update; of.Edit {
		if err := j.decoder.DecodeRaw(q.OldObject, before); err != nil {
			return "", nil, fmt.Errorf("read the pod as it was: %w", err)
		}
		of.Before = asking(before, ns)
	}
	if name, errs := of.Pod.VPC(); name != "" && len(errs) == 0 {
		if of.VPC, err = vpc(ctx, r, name); err != nil {
			return "", nil, err
		}
	}
	missing, errs := of.Judge()
	if by := p.Annotations[v1alpha1.AnnotationNICPolicy]; by != "" && !of.Edit {
		for i := range errs {
			errs[i].Field = by + ": " + errs[i].Field // whose author has to mend it
		}
	}
	return missing, errs, nil
}

// asking is what a pod of a namespace asks for.
func asking(p *corev1.Pod, ns *metav1.PartialObjectMetadata) nicrequest.Pod {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return nicrequest.Pod{Annotations: p.Annotations, NamespaceVPC: ns.Annotations[v1alpha1.AnnotationVPC], HostNetwork: p.Spec.HostNetwork, Mirror: mirror}
}

// nic judges a PodNIC that is made, or is given other groups.
func (j judge) nic(ctx context.Context, r client.Reader, q admission.Request) (string, nicrequest.Errors, error) {
	n := &v1alpha1.PodNIC{}
	if err := j.decoder.Decode(q, n); err != nil {
		return "", nil, fmt.Errorf("read the PodNIC: %w", err)
	}
	if n.DeletionTimestamp != nil {
		return "", nil, nil
	}
	v, err := vpc(ctx, r, n.Spec.VPC)
	if err != nil || v == nil {
		return n.Spec.VPC, nil, err
	}
	ns, err := namespace(ctx, r, q.Namespace)
	if err != nil {
		return "", nil, err
	}
	return "", nicrequest.CheckObject(n.Spec, v, q.Namespace, ns.Labels), nil
}

// vpc is the one of a name; nil without.
func vpc(ctx context.Context, r client.Reader, name string) (*v1alpha1.VPC, error) {
	v := &v1alpha1.VPC{}
	err := r.Get(ctx, client.ObjectKey{Name: name}, v)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read VPC %s: %w", name, err)
	}
	return v, nil
}

// namespace is the metadata of one; empty for one that is not seen yet.
func namespace(ctx context.Context, r client.Reader, name string) (*metav1.PartialObjectMetadata, error) {
	ns := watched.Namespace(name)
	if err := r.Get(ctx, client.ObjectKey{Name: name}, ns); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read namespace %s: %w", name, err)
	}
	return ns, nil
}
