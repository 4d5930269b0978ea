package operator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/internal/clock"
)

// A storm of refusals makes few lines, and each names the right and the remedy.
func TestMissingRightIsToldWithItsRemedy(t *testing.T) {
	var out bytes.Buffer
	fake := clock.NewFake(time.Now())
	u := newUnwatched(slog.New(slog.NewTextHandler(&out, nil)), fake)
	lines := func() []string {
		l := strings.Split(strings.TrimSpace(out.String()), "\n")
		out.Reset()
		return l
	}
	forbidden := fmt.Errorf("failed to list *v1.Pod: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
		errors.New(`User "system:serviceaccount:kube-system:berth-operator" cannot list resource "pods" in API group "" at the cluster scope`)))
	for range 1000 {
		if !u.report("*v1.Pod", forbidden) {
			t.Fatal("left to client-go")
		}
	}
	got := lines()
	if len(got) != 1 || !strings.Contains(got[0], "kind=*v1.Pod") || !strings.Contains(got[0], `cannot list resource \"pods\"`) ||
		!strings.Contains(got[0], "refuses berth-operator") || !strings.Contains(got[0], "ClusterRole and ClusterRoleBinding berth-operator of deploy/chart") {
		t.Errorf("%d lines: %q", len(got), got)
	}
	u.report("*v1.Node", forbidden)
	u.report("*v1.Pod", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, ""))
	if got := lines(); len(got) != 2 || !strings.Contains(got[0], "kind=*v1.Node") || !strings.Contains(got[1], "lacks kinds") {
		t.Errorf("another kind and another reason: %q", got)
	}
	fake.Advance(logAgain)
	u.report("*v1.Node", forbidden)
	if got := lines(); len(got) != 1 || got[0] == "" {
		t.Errorf("it is not told again after %v", logAgain)
	}
	for _, other := range []error{errors.New("connection refused"), apierrors.NewResourceExpired("too old")} {
		if u.report("*v1.Pod", other) || out.Len() > 0 {
			t.Errorf("%v: %q", other, out.String())
		}
	}
}

// Where the API server does not know the operator, or the operator not the API server,
// roles that are applied anew are no remedy.
func TestUnknownOperatorIsNotToldOfRoles(t *testing.T) {
	for _, err := range []error{
		apierrors.NewUnauthorized("Unauthorized"),
		&tls.CertificateVerificationError{Err: errors.New("x509: certificate signed by unknown authority")},
	} {
		remedy := remedyOf(fmt.Errorf("failed to list *v1.Pod: %w", err))
		if strings.Contains(remedy, "ClusterRole") || !strings.Contains(remedy, "restart the operator") {
			t.Errorf("%v: %q", err, remedy)
		}
	}
}

// It is what client-go calls where a list is refused.
func TestReflectorTellsOfAMissingRight(t *testing.T) {
	told := make(chan string, 1)
	u := newUnwatched(slog.New(slog.NewTextHandler(writer(func(b []byte) {
		select {
		case told <- string(b):
		default:
		}
	}), nil)), clock.Real{})
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	lw := &toolscache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, refused },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, refused },
	}
	informer := toolscache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, nil)
	if err := informer.SetWatchErrorHandlerWithContext(u.handle); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	select {
	case line := <-told:
		if !strings.Contains(line, "kind=*v1.Pod") || !strings.Contains(line, "remedy=") {
			t.Error(line)
		}
	case <-ctx.Done():
		t.Error("nothing was told")
	}
	cancel()
	<-ended
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
