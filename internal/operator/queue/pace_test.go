package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Only a conflict, possibly wrapped, is no error; everything else is passed on.
func TestRetryConflicts(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "vpcs"}, "blue", errors.New("changed"))
	other := errors.New("refused")
	later := reconcile.Result{RequeueAfter: time.Minute}
	for name, tt := range map[string]struct {
		result  reconcile.Result
		err     error
		want    reconcile.Result
		wantErr error
	}{
		"done":             {later, nil, later, nil},
		"conflict":         {later, conflict, reconcile.Result{RequeueAfter: CacheLag}, nil},
		"wrapped conflict": {reconcile.Result{}, fmt.Errorf("write: %w", conflict), reconcile.Result{RequeueAfter: CacheLag}, nil},
		"other error":      {later, other, later, other},
	} {
		look := func(context.Context, reconcile.Request) (reconcile.Result, error) { return tt.result, tt.err }
		if got, err := RetryConflicts(look).Reconcile(t.Context(), Request("blue")); got != tt.want || !errors.Is(err, tt.wantErr) {
			t.Errorf("%s: Reconcile() = %v, %v, want %v, %v", name, got, err, tt.want, tt.wantErr)
		}
	}
}

// A failing object is retried with increasing delays, up to the maximum.
func TestOptions(t *testing.T) {
	o := Options(3, time.Second)
	if o.MaxConcurrentReconciles != 3 || o.ReconciliationTimeout != time.Second {
		t.Errorf("Options() = %d workers with timeout %v, want 3 with 1s", o.MaxConcurrentReconciles, o.ReconciliationTimeout)
	}
	var waits []time.Duration
	for range 12 {
		waits = append(waits, o.RateLimiter.When(Request("blue")))
	}
	if waits[0] != firstRetry || waits[1] != 2*firstRetry || waits[11] != lastRetry {
		t.Errorf("delays = %v, want %v, doubling up to %v", waits, firstRetry, lastRetry)
	}
}
