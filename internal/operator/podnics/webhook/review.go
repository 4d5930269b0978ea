package webhook

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/vpcport"
)

// reviewer answers the API server's requests about pods and PodNICs that are created or edited.
type reviewer struct {
	decoder admission.Decoder
	// cached is read first. It may be stale, so live is read before anything is rejected, or a pod is taken to be in no VPC.
	cached, live client.Reader
	policies     Policies // may be nil
	first        nicrequest.First
	clock        clock.Clock
	metrics      *Metrics
}

// validate rejects pods and PodNICs that ask for something they cannot have. It allows what it cannot judge.
func (r reviewer) validate(ctx context.Context, q admission.Request) admission.Response {
	judge := r.pod
	switch q.Resource.Resource {
	case ofPods:
	case ofPodNICs:
		judge = r.nic
	default:
		return admission.Allowed("")
	}
	return r.counted(q.Resource.Resource, func(ctx context.Context, q admission.Request) (admission.Response, string) {
		return r.answer(ctx, q, judge)
	})(ctx, q)
}

// counted wraps a review so that its outcome and duration are counted.
func (r reviewer) counted(resource string, review func(context.Context, admission.Request) (admission.Response, string)) admission.HandlerFunc {
	return func(ctx context.Context, q admission.Request) admission.Response {
		began := r.clock.Now()
		response, outcome := review(ctx, q)
		r.metrics.reviewed(resource, outcome, r.clock.Now().Sub(began))
		return response
	}
}

// answer returns the response to a request reviewed by judge, and its outcome.
func (r reviewer) answer(ctx context.Context, q admission.Request, judge func(context.Context, client.Reader, admission.Request) (string, nicrequest.Errors, error)) (admission.Response, string) {
	missing, errs, err := judge(ctx, r.cached, q)
	if err == nil && (len(errs) > 0 || missing != "") {
		missing, errs, err = judge(ctx, r.live, q)
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

// unjudged allows a request that could not be judged. An error would reject it: the failure policy Ignore applies to failed calls, not to
// their answers (Kubernetes documentation, "Dynamic Admission Control").
func unjudged(err error) admission.Response {
	return admission.Allowed("").WithWarnings("berth-operator could not check this: " + vpcport.Cut(err.Error(), maxWarning))
}

// maxWarning is the maximum length of a warning with an error in bytes. All warnings of one answer may have 4096 bytes, and should have at
// most 120 characters each (Kubernetes documentation, "Dynamic Admission Control").
const maxWarning = 200

// pod reviews a pod that is created, or whose annotations are edited.
func (r reviewer) pod(ctx context.Context, from client.Reader, q admission.Request) (string, nicrequest.Errors, error) {
	p, before := &corev1.Pod{}, &corev1.Pod{}
	if err := r.decoder.Decode(q, p); err != nil {
		return "", nil, fmt.Errorf("read the pod: %w", err)
	}
	if p.DeletionTimestamp != nil {
		return "", nil, nil
	}
	ns, err := namespace(ctx, from, q.Namespace)
	if err != nil {
		return "", nil, err
	}
	of := nicrequest.Request{Pod: asking(p, ns), Namespace: q.Namespace, Labels: ns.Labels, First: r.first}
	if of.Edit = q.Operation == admissionv1.Update; of.Edit {
		if err := r.decoder.DecodeRaw(q.OldObject, before); err != nil {
			return "", nil, fmt.Errorf("read the old pod: %w", err)
		}
		of.Before = asking(before, ns)
	}
	if name, errs := of.Pod.VPC(); name != "" && len(errs) == 0 {
		if of.VPC, err = vpc(ctx, from, name); err != nil {
			return "", nil, err
		}
	}
	missing, errs := of.Judge()
	if by := p.Annotations[v1alpha1.AnnotationNICPolicy]; by != "" && !of.Edit {
		for i := range errs {
			errs[i].Field = by + ": " + errs[i].Field // has to be fixed by the policy's author
		}
	}
	return missing, errs, nil
}

// asking returns a pod of a namespace in the form that package nicrequest reads.
func asking(p *corev1.Pod, ns *metav1.PartialObjectMetadata) nicrequest.Pod {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return nicrequest.Pod{Annotations: p.Annotations, NamespaceVPC: ns.Annotations[v1alpha1.AnnotationVPC], HostNetwork: p.Spec.HostNetwork, Mirror: mirror}
}

// nic reviews a PodNIC that is created or gets other groups.
func (r reviewer) nic(ctx context.Context, from client.Reader, q admission.Request) (string, nicrequest.Errors, error) {
	n := &v1alpha1.PodNIC{}
	if err := r.decoder.Decode(q, n); err != nil {
		return "", nil, fmt.Errorf("read the PodNIC: %w", err)
	}
	if n.DeletionTimestamp != nil {
		return "", nil, nil
	}
	v, err := vpc(ctx, from, n.Spec.VPC)
	if err != nil || v == nil {
		return n.Spec.VPC, nil, err
	}
	ns, err := namespace(ctx, from, q.Namespace)
	if err != nil {
		return "", nil, err
	}
	return "", nicrequest.CheckObject(n.Spec, v, q.Namespace, ns.Labels), nil
}

// vpc returns a VPC by name, or nil if it does not exist.
func vpc(ctx context.Context, r client.Reader, name string) (*v1alpha1.VPC, error) {
	return objects.Get[v1alpha1.VPC](ctx, r, client.ObjectKey{Name: name})
}

// namespace returns the metadata of a namespace, or only its name if it is not known yet.
func namespace(ctx context.Context, r client.Reader, name string) (*metav1.PartialObjectMetadata, error) {
	ns := watched.Namespace(name)
	if err := r.Get(ctx, client.ObjectKey{Name: name}, ns); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read namespace %s: %w", name, err)
	}
	return ns, nil
}

// askForBranches makes a new pod request as many branch interfaces as it will have. If that cannot be determined, the pod is not changed.
func (r reviewer) askForBranches(ctx context.Context, q admission.Request) (admission.Response, string) {
	p := &corev1.Pod{}
	if err := r.decoder.Decode(q, p); err != nil {
		return unjudged(fmt.Errorf("read the pod: %w", err)), outcomeError
	}
	branches, known, err := r.countBranches(ctx, r.cached, p, q.Namespace)
	if err == nil && !known {
		branches, _, err = r.countBranches(ctx, r.live, p, q.Namespace)
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

// countBranches returns how many branch interfaces a pod of a namespace will have, and whether the VPC that it names is known.
func (r reviewer) countBranches(ctx context.Context, from client.Reader, p *corev1.Pod, in string) (branches int, known bool, err error) {
	ns, err := namespace(ctx, from, in)
	if err != nil {
		return 0, false, err
	}
	of := asking(p, ns)
	name, errs := of.VPC()
	if name == "" || len(errs) > 0 {
		return 0, false, nil
	}
	v, err := vpc(ctx, from, name)
	if err != nil {
		return 0, false, err
	}
	return branchesOf(of, v, r.first), v != nil, nil
}
