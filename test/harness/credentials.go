package harness

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/berthnet/berth/deploy"
)

// OperatorConfig is the operator's access to ControlPlane: its service account, with the roles and
// admission policies of a mode, which it applies unless they are there.
func OperatorConfig(t *testing.T, mode string) *rest.Config {
	t.Helper()
	return OperatorConfigOf(t, deploy.InMode(mode, "test"))
}

// OperatorConfigOf is OperatorConfig for a release with values of its own.
func OperatorConfigOf(t *testing.T, r deploy.Release) *rest.Config {
	t.Helper()
	if key, err := json.Marshal(r); err != nil || access.Load() != string(key) {
		OK(t, ApplyAccessOf(t.Context(), r))
	}
	token, err := ControlPlane.Token(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}, nil)
	OK(t, err)
	return ControlPlane.ConfigWithToken(token)
}

// ApplyAccess gives ControlPlane the accounts, roles and admission policies that
// the chart has in a mode.
func ApplyAccess(ctx context.Context, mode string) error {
	return ApplyAccessOf(ctx, deploy.InMode(mode, "test"))
}

// ApplyAccessOf is ApplyAccess for any release of the chart.
func ApplyAccessOf(ctx context.Context, r deploy.Release) error {
	objects, err := deploy.Render(r)
	if err != nil {
		return err
	}
	if err := ControlPlane.ApplyObjects(ctx, objects.Access()); err != nil {
		return err
	}
	key, err := json.Marshal(r)
	access.Store(string(key))
	return err
}

// access is the release, as JSON, whose access ControlPlane has. Nearly all tests of a package have
// the same, and applying it takes longer than many a test.
var access atomic.Value

// Through sends a client's requests through do, which may send each by next, and is called
// concurrently.
func Through(do func(r *http.Request, next http.RoundTripper) (*http.Response, error)) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return do(r, next) })
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (do roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return do(r) }
