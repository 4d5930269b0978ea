package rollout

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berthnet/berth/internal/clock"
)

// unreachable is a cluster whose API server answers with an error.
type unreachable struct {
	Cluster
	err error
}

func (u unreachable) Observe(context.Context) (State, error) { return State{}, u.err }

// A run ends soon if a right is missing, and names it. It tolerates rejections of an API server that has just started.
func TestMissingRights(t *testing.T) {
	err := fmt.Errorf("label Node a: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", errors.New(`User "eve" cannot patch resource "nodes" in API group "" at the cluster scope`)))
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := Run(t.Context(), unreachable{err: err}, "test", Options{Direction: Apply}, clock.Real{}, func(string, string) {})
		if took := time.Since(began); took > propagation+interval || got == nil || !strings.Contains(got.Error(), `give it to the user of the kubeconfig`) || !strings.Contains(got.Error(), `cannot patch resource "nodes"`) {
			t.Errorf("error after %v = %v, want it within %v with the right", took, got, propagation+interval)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		quota := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "tool", errors.New("exceeded quota: pods, requested: pods=1, used: pods=9, limited: pods=9"))
		began := time.Now()
		got := Run(t.Context(), unreachable{err: quota}, "test", Options{Direction: Apply}, clock.Real{}, func(string, string) {})
		if took := time.Since(began); took < Patience || got == nil || strings.Contains(got.Error(), "kubeconfig") || !strings.Contains(got.Error(), "exceeded quota") {
			t.Errorf("error after %v = %v, want it after %v with the reason", took, got, Patience)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(5, true, 3)
		if got := Run(t.Context(), &starting{Cluster: w, until: time.Now().Add(propagation - interval), err: err}, "test", w.options(Apply), clock.Real{}, func(string, string) {}); got != nil {
			t.Errorf("error = %v, want none once the API server has started", got)
		}
	})
}

// starting is a cluster whose API server rejects requests at first.
type starting struct {
	Cluster
	until time.Time
	err   error
}

func (s *starting) Observe(ctx context.Context) (State, error) {
	if time.Now().Before(s.until) {
		return State{}, s.err
	}
	return s.Cluster.Observe(ctx)
}

// A run ends at once if the certificate of the API server does not verify, and otherwise waits for the end of an outage.
func TestUntrustedCertificate(t *testing.T) {
	for want, err := range map[time.Duration]error{
		0:                   fmt.Errorf("list Nodes: %w", errors.Join(&url.Error{Op: "Get", URL: "https://api", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}})),
		Patience + interval: fmt.Errorf("list Nodes: %w", &url.Error{Op: "Get", URL: "https://api", Err: syscall.ECONNREFUSED}),
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			got := Run(t.Context(), unreachable{err: err}, "test", Options{Direction: Apply}, clock.Real{}, func(string, string) {})
			if took := time.Since(began); took != want || !errors.Is(got, err) || strings.Contains(got.Error(), "check server, certificate-authority") != (want == 0) {
				t.Errorf("%v: error after %v = %v, want it after %v", err, took, got, want)
			}
		})
	}
}

// The last request may be carried out without a reply: the run ends well.
func TestLostReplyToTheLastRequest(t *testing.T) {
	for _, d := range []Direction{Finish, Rollback} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(7, true, 2)
			if err := w.run(t, w.options(Apply)); err != nil {
				t.Fatal(err)
			}
			if err := Run(t.Context(), silentEnd{w}, "test", w.options(d), clock.Real{}, func(string, string) {}); err != nil || w.From != "" {
				t.Errorf("%s: error = %v, migration from %q is recorded", d, err, w.From)
			}
		})
	}
}

// silentEnd is a cluster whose API server goes away after the last request.
type silentEnd struct{ Cluster }

func (s silentEnd) Do(ctx context.Context, a Action) error {
	err := s.Cluster.Do(ctx, a)
	if a.Kind == End {
		err = errors.Join(err, io.ErrUnexpectedEOF)
	}
	return err
}
