package kube

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAway(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	unconfigured := apierrors.NewForbidden(pods, "p", errors.New("a policy denied request: failed to configure policy"))
	unconfigured.ErrStatus.Reason = metav1.StatusReasonInvalid // as API servers say of all that policies deny
	for _, tt := range []struct {
		err  error
		away bool
	}{
		{errors.New("connection refused"), true},
		{apierrors.NewServiceUnavailable("etcd"), true},
		{apierrors.NewForbidden(pods, "p", errors.New("not yet ready to handle request")), true},
		{unconfigured, true},
		{apierrors.NewForbidden(pods, "p", errors.New("no such right")), false},
		{apierrors.NewNotFound(pods, "p"), false},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), false},
	} {
		if got := Away(tt.err); got != tt.away {
			t.Errorf("%v: away is %v, want %v", tt.err, got, tt.away)
		}
		tries := 0
		err := Again(t.Context(), "make a pod", func() error {
			if tries++; tries > 1 {
				return nil
			}
			return tt.err
		})
		if (err == nil) != tt.away || !tt.away && !errors.Is(err, tt.err) {
			t.Errorf("%v: tried %d times, then %v", tt.err, tries, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Again(ctx, "make a pod", func() error { return errors.New("connection refused") }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}
