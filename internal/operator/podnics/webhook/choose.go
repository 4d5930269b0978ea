package webhook

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// Policies are the policies that give pods a NIC.
type Policies interface {
	// Of returns the policies of a namespace from the cache or, if live is set, from the API server.
	Of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error)
}

// applyPolicy adds the NIC of the policy that selects a new pod to the pod. The API server calls it only for pods of namespaces with
// policies. There a pod that cannot be judged is rejected: otherwise it would run without its security groups.
func (r reviewer) applyPolicy(ctx context.Context, q admission.Request) (admission.Response, string) {
	p := &corev1.Pod{}
	if err := r.decoder.Decode(q, p); err != nil {
		return unchosen(http.StatusBadRequest, fmt.Errorf("read the pod: %w", err)), outcomeError
	}
	if !asking(p, &metav1.PartialObjectMetadata{}).MayBeSelected() { // regardless of the VPC that its namespace names
		return admission.Allowed(""), outcomeAllowed
	}
	choice, err := r.choose(ctx, p, q.Namespace)
	if err != nil {
		return unchosen(http.StatusInternalServerError, fmt.Errorf("find the NICPolicy of the pod: %w", err)), outcomeError
	}
	vpc, refusal, err := r.policyVPC(ctx, choice, q.Namespace)
	switch {
	case err != nil:
		return unchosen(http.StatusInternalServerError, err), outcomeError
	case refusal != nil:
		return unchosen(http.StatusUnprocessableEntity, refusal), outcomeRefused
	}
	values := choice.Annotations(vpc, r.first)
	changes := []func(map[string]any) error{annotate(values)}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, values)
	if first := lacks(p, branchesOf(nicrequest.Pod{Annotations: p.Annotations}, vpc, r.first)); first > 0 {
		changes = append(changes, request(first))
	}
	changed, err := edited(q.Object.Raw, changes...)
	if err != nil {
		return unchosen(http.StatusBadRequest, err), outcomeError
	}
	return admission.PatchResponseFromRaw(q.Object.Raw, changed), outcomeChanged
}

// choose returns which policies apply to a pod. As the cache may be stale, a pod that no cached policy selects may be selected by one that
// was created together with it.
func (r reviewer) choose(ctx context.Context, p *corev1.Pod, namespace string) (choice nicrequest.Choice, err error) {
	var account map[string]string
	for _, live := range []bool{false, true} {
		policies, err := r.policies.Of(ctx, namespace, live)
		if err != nil {
			return choice, err
		}
		if account == nil && nicrequest.AskAccounts(policies) {
			if account, err = r.account(ctx, namespace, p.Spec.ServiceAccountName); err != nil {
				return choice, err
			}
		}
		if choice = nicrequest.Choose(policies, p.Labels, account); len(choice.Counts) > 0 {
			return choice, nil
		}
	}
	return choice, nil
}

// account returns the labels of a pod's service account, which is "default" if it names none. It asks the API server, as the account may
// just have been created.
func (r reviewer) account(ctx context.Context, namespace, name string) (map[string]string, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	name = cmp.Or(name, "default")
	err := r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return map[string]string{}, nil // the API server rejects the pod for this
	}
	if err != nil {
		return nil, fmt.Errorf("read service account %s/%s: %w", namespace, name, err)
	}
	if o.Labels == nil {
		return map[string]string{}, nil
	}
	return o.Labels, nil
}

// policyVPC returns the VPC in which a pod of a namespace gets its NIC, or nil if no policy applies. The refusal says what is wrong with the
// policy.
func (r reviewer) policyVPC(ctx context.Context, choice nicrequest.Choice, in string) (v *v1alpha1.VPC, refusal, err error) {
	if len(choice.Counts) == 0 {
		return nil, nil, nil
	}
	for _, from := range []client.Reader{r.cached, r.live} {
		ns, err := namespace(ctx, from, in)
		if err != nil {
			return nil, nil, err
		}
		list := &v1alpha1.VPCList{}
		if err := from.List(ctx, list); err != nil {
			return nil, nil, fmt.Errorf("list VPCs: %w", err)
		}
		of := nicrequest.Namespace{Name: in, Labels: ns.Labels, VPC: ns.Annotations[v1alpha1.AnnotationVPC]}
		if v, refusal = choice.VPC(of, list.Items); refusal == nil {
			return v, nil, nil
		}
	}
	return nil, refusal, nil
}

// unchosen rejects a pod whose policy could not be determined. Its controller will retry.
func unchosen(code int32, err error) admission.Response {
	reason := metav1.StatusReasonInternalError
	if code == http.StatusUnprocessableEntity {
		reason = metav1.StatusReasonInvalid
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error(),
	}}}
}
