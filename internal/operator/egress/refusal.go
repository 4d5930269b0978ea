package egress

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
)

// problemOf is what the failure of an object means for a person; nil: it is none of theirs,
// as the API server is away, or somebody else was faster.
func problemOf(kind schema.GroupVersionKind, name string, err error) *gatewayplan.Problem {
	taken, isTaken := errors.AsType[notOurs](err)
	status, isStatus := errors.AsType[*apierrors.StatusError](err)
	switch {
	case isTaken:
		return &gatewayplan.Problem{Reason: v1alpha1.EgressNameTaken, Message: fmt.Sprintf("%s %s: %v", kind.Kind, name, taken)}
	case !isStatus || !refuses(err) || isAnothers(status):
		return nil
	}
	p := &gatewayplan.Problem{Reason: v1alpha1.EgressRefused, Message: fmt.Sprintf("%s %s: %s", kind.Kind, name, status.Status().Message)}
	details := status.Status().Details
	if !apierrors.IsInvalid(err) || details == nil || len(details.Causes) == 0 {
		return p
	}
	// The fields of a Deployment that an Egress's say have the same paths.
	var causes []string
	for _, cause := range details.Causes {
		causes = append(causes, strings.TrimPrefix(cause.Field+": "+cause.Message, ": "))
		if kind == gatewayplan.Deployment && strings.HasPrefix(cause.Field, "spec.template.") {
			p.Reason = v1alpha1.EgressInvalidTemplate
		}
	}
	p.Message = strings.Join(causes, "; ")
	if p.Reason == v1alpha1.EgressRefused {
		p.Message = fmt.Sprintf("%s %s: %s", kind.Kind, name, p.Message)
	}
	return p
}

// isAnothers tells whether a refusal is about the UID: the object is another one of the name
// than the cache has.
func isAnothers(err *apierrors.StatusError) bool {
	details := err.ErrStatus.Details
	return details != nil && slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// refuses tells whether the API server will not have something, and not because of the
// moment.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}
