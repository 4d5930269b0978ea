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
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
)

// Policies are those that select pods.
type Policies interface {
	// Of are the policies of a namespace as they are known, or, live, as the API server has
	// them now.
	Of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error)
}

// chooser has pods ask for the NIC of the policy that selects them. It is asked about pods
// of namespaces with policies alone, and there no pod passes that it could not judge: it
// would run without the security groups that it is to have.
type chooser struct {
	decoder      admission.Decoder
	cached, live client.Reader
	policies     Policies
	first        nicrequest.First
	clock        clock.Clock
	metrics      *Metrics
}

// Handle implements admission.Handler for pods that are made.
func (c chooser) Handle(ctx context.Context, q admission.Request) admission.Response {
	began := c.clock.Now()
	answer, outcome := c.answer(ctx, q)
	c.metrics.reviewed(ofPolicies, outcome, c.clock.Now().Sub(began))
	return answer
}

func (c chooser) answer(ctx context.Context, q admission.Request) (admission.Response, string) {
	p := &corev1.Pod{}
	if err := c.decoder.Decode(q, p); err != nil {
		return unchosen(http.StatusBadRequest, fmt.Errorf("read the pod: %w", err)), outcomeError
	}
	if !asking(p, &metav1.PartialObjectMetadata{}).MayBeSelected() { // whatever its namespace says
		return admission.Allowed(""), outcomeAllowed
	}
	choice, err := c.choose(ctx, p, q.Namespace)
	if err != nil {
		return unchosen(http.StatusInternalServerError, fmt.Errorf("find the NICPolicy of the pod: %w", err)), outcomeError
	}
	vpc, refusal, err := c.vpc(ctx, choice, q.Namespace)
	switch {
	case err != nil:
		return unchosen(http.StatusInternalServerError, err), outcomeError
	case refusal != nil:
		return unchosen(http.StatusUnprocessableEntity, refusal), outcomeRefused
	}
	values := choice.Annotations(vpc, c.first)
	changes := []func(map[string]any) error{annotate(values)}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, values)
	if first := lacks(p, branchesOf(nicrequest.Pod{Annotations: p.Annotations}, vpc, c.first)); first > 0 {
		changes = append(changes, request(first))
	}
	changed, err := edited(q.Object.Raw, changes...)
	if err != nil {
		return unchosen(http.StatusBadRequest, err), outcomeError
	}
	return admission.PatchResponseFromRaw(q.Object.Raw, changed), outcomeChanged
}

// choose is which policies count for a pod. What is known trails: a pod that none of those
// selects may be selected by one that was made with it.
func (c chooser) choose(ctx context.Context, p *corev1.Pod, namespace string) (choice nicrequest.Choice, err error) {
	var account map[string]string
	for _, live := range []bool{false, true} {
		policies, err := c.policies.Of(ctx, namespace, live)
		if err != nil {
			return choice, err
		}
		if account == nil && nicrequest.AskAccounts(policies) {
			if account, err = c.account(ctx, namespace, p.Spec.ServiceAccountName); err != nil {
				return choice, err
			}
		}
		if choice = nicrequest.Choose(policies, p.Labels, account); len(choice.Counts) > 0 {
			return choice, nil
		}
	}
	return choice, nil
}

// account are the labels of a pod's service account, which is "default" where it names none.
// It is read from the API server: that of a pod may just have been made.
func (c chooser) account(ctx context.Context, namespace, name string) (map[string]string, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	name = cmp.Or(name, "default")
	err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return map[string]string{}, nil // the pod is refused for that, by the API server itself
	}
	if err != nil {
		return nil, fmt.Errorf("read service account %s/%s: %w", namespace, name, err)
	}
	if o.Labels == nil {
		return map[string]string{}, nil
	}
	return o.Labels, nil
}

// vpc is the one in which a pod of a namespace gets its NIC; nil if no policy counts. A
// refusal is what is wrong with the policy. What is known trails here too.
func (c chooser) vpc(ctx context.Context, choice nicrequest.Choice, in string) (v *v1alpha1.VPC, refusal, err error) {
	if len(choice.Counts) == 0 {
		return nil, nil, nil
	}
	for _, r := range []client.Reader{c.cached, c.live} {
		ns, err := namespace(ctx, r, in)
		if err != nil {
			return nil, nil, err
		}
		list := &v1alpha1.VPCList{}
		if err := r.List(ctx, list); err != nil {
			return nil, nil, fmt.Errorf("list VPCs: %w", err)
		}
		of := nicrequest.Namespace{Name: in, Labels: ns.Labels, VPC: ns.Annotations[v1alpha1.AnnotationVPC]}
		if v, refusal = choice.VPC(of, list.Items); refusal == nil {
			return v, nil, nil
		}
	}
	return nil, refusal, nil
}

// unchosen refuses a pod of which no policy could be found. Whoever made it tries again.
func unchosen(code int32, err error) admission.Response {
	reason := metav1.StatusReasonInternalError
	if code == http.StatusUnprocessableEntity {
		reason = metav1.StatusReasonInvalid
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error(),
	}}}
}
