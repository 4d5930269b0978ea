package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/lab/run/poll"
)

// notReady is what admission says as long as it has not read the objects, or the
// kinds, that it goes by (k8s.io/apiserver/pkg/admission.WaitForReady and
// plugin/policy). It calls that forbidden, or invalid.
var notReady = []string{"not yet ready to handle request", "failed to configure policy", "failed to configure binding"}

// Away reports whether an error is of an API server that cannot answer, such as one that is starved or
// waits for etcd, from one that refuses.
func Away(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return true // no answer at all
	}
	says := func(text string) bool { return strings.Contains(err.Error(), text) }
	return slices.ContainsFunc(notReady, says) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err)
}

// Again retries a request while the API server is Away and
// ctx lasts. What names it in the error.
func Again(ctx context.Context, what string, do func() error) error {
	if err := poll.Retry(ctx, do, Away); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
