package kubectl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/test/harness"
)

// flaky is an API server that goes away at random: it refuses connections, or ends after a request was carried out and
// before its reply.
type flaky struct {
	to     http.RoundTripper
	mu     *sync.Mutex // guards the others
	random *rand.Rand
	count  *int
}

func (f flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	fate := f.random.IntN(32)
	if strings.HasSuffix(r.URL.Path, "/version") { // a command fails at once if there is no API server when it begins
		fate = 2
	}
	if fate < 2 {
		*f.count++
	}
	f.mu.Unlock()
	if fate == 0 {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	reply, err := f.to.RoundTrip(r)
	if err == nil && fate == 1 {
		_ = reply.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return reply, err
}

// Every command ends well while each sixteenth request to the API server fails, half of these after it was carried out, and
// nothing is half applied.
func TestOutages(t *testing.T) {
	m := newMovers(t, "kube-system/aws-node", map[string]string{"k8s-app": "aws-node"})
	before := m.former("aws-node").Spec
	count := 0
	seeded, err := faults.New()
	harness.OK(t, err)
	f := flaky{mu: &sync.Mutex{}, random: seeded.Rand, count: &count}
	cfg := harness.ControlPlane.Config()
	cfg.Wrap(func(to http.RoundTripper) http.RoundTripper { return flaky{to, f.mu, f.random, f.count} })
	o := Options{Config: cfg, Dial: m.dial(), Clock: hurried{}}
	run := func(want string, args ...string) {
		t.Helper()
		out, code, err := try(t, o, append([]string{"migrate", migrate.AmazonVPCCNI}, args...)...)
		if err != nil || code != 0 || !strings.Contains(out, want) {
			t.Fatalf("%s: %s: exit code = %d, error = %v, want %q\n%s", seeded, strings.Join(args, " "), code, err, want, out)
		}
	}
	run("to be moved", "plan")
	run("moved", "apply", "--nodes", "node-0")
	run("to be moved", "rollback")
	if after := m.former("aws-node").Spec; !equalJSON(t, before, after) {
		t.Errorf("%s: DaemonSet after the rollback = %+v, want %+v", seeded, after, before)
	}
	m.traces(t)
	run("moved", "apply")
	m.mu.Lock()
	for node, pods := range m.adopted { // the first one of each was evicted
		m.adopted[node] = pods[1:]
	}
	m.mu.Unlock()
	run("2 nodes of Berth, 3 pods: 0 problems", "verify") // one of node-0 was evicted in each apply
	run("", "apply", "--finish")
	m.noFaults()
	if count < 10 {
		t.Errorf("%d requests failed, want more", count)
	}
}

// A pod whose namespace is being deleted is waited for: Kubernetes rejects its eviction.
func TestEvictionInEndingNamespace(t *testing.T) {
	harness.KubeClean(t)
	namespace, pod := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}}, podOn("node-0", "web", "10.0.0.9")
	pod.Namespace = namespace.Name
	create(t, namespace, &pod)
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), namespace))
	a, err := (&program{Options: Options{Config: harness.ControlPlane.Config()}}).connect()
	harness.OK(t, err)
	r := &requests{api: a}
	harness.Eventually(t, harness.Patience, "the namespace ends", func() error {
		err := r.evict(t.Context(), rollout.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: "another"})
		if _, is := errors.AsType[*rollout.BlockedError](err); !is || !strings.Contains(err.Error(), "ending/web") {
			return fmt.Errorf("error = %w, want one that waits for pod ending/web", err)
		}
		return nil
	})
}

// A certificate of the API server that does not verify is no outage.
func TestUntrustedAPIServer(t *testing.T) {
	r := &requests{clock: hurried{}, retrying: func(why string) { t.Error(why) }}
	untrusted := &url.Error{Op: "Get", URL: "https://api", Err: &tls.CertificateVerificationError{Err: errors.New("x509: certificate signed by unknown authority")}}
	err := r.patiently(t.Context(), func(context.Context) error { return untrusted })
	if !errors.Is(err, untrusted) || !strings.Contains(err.Error(), "check server, certificate-authority") {
		t.Errorf("error = %v, want one that says what to check", err)
	}
}
