package operator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

const waitingLine = "waiting for the Kubernetes API"

// tried is nil once an operator has met so many times nobody who listens.
func (p *process) tried(times int) func() error {
	return func() error {
		for name, v := range p.values() {
			if n, _ := strconv.Atoi(v); strings.HasPrefix(name, "rest_client_requests_total") && strings.Contains(name, `code="<error>"`) && n >= times {
				return nil
			}
		}
		return errors.New("not yet")
	}
}

func (p *process) lines(text string) int { return strings.Count(p.LogTail(10000), text) }

// repeatsNothing checks that an operator logged why it waits when that changed,
// and not at each try.
func (p *process) repeatsNothing() {
	p.c.t.Helper()
	last := ""
	for line := range strings.Lines(p.LogTail(10000)) {
		_, why, found := strings.Cut(line, "because=")
		if !found || !strings.Contains(line, waitingLine) {
			continue
		}
		why, _, _ = strings.Cut(why, " err=")
		if why == last {
			p.c.t.Errorf("%s says again that it waits because %s", p, why)
		}
		last = why
	}
}

func TestWhyTheAPICannotBeUsed(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&meta.NoKindMatchError{}, lacks},
		{apierrors.NewNotFound(nodes, "n"), lacks},
		{apierrors.NewForbidden(nodes, "n", nil), refuses},
		{fmt.Errorf("list: %w", &tls.CertificateVerificationError{}), refuses},
		{http.ErrSchemeMismatch, refuses},
		{errors.New("connection refused"), away},
	} {
		if got := because(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

// What a part reports after the end was asked for is no error in the log.
func TestEndIsNoError(t *testing.T) {
	for _, ended := range []bool{false, true} {
		var b strings.Builder
		ctx, end := context.WithCancel(t.Context())
		defer end()
		if ended {
			end()
		}
		log := slog.New(quietStop{slog.NewTextHandler(&b, nil), ctx}).With("a", 1).WithGroup("g")
		log.Error(afterStop)
		log.Error("another")
		if got := strings.Count(b.String(), "level=ERROR"); (got == 1) != ended {
			t.Errorf("ended: %t, logged:\n%s", ended, b.String())
		}
	}
}

// An operator that starts without an API server lives, is not ready, says so
// once, and goes to work when the server comes.
func TestStartsBeforeTheAPIServer(t *testing.T) {
	c := newCluster(t)
	back := harness.WithoutAPIServer(t)
	o := c.start("one")
	o.until(answersWith(o.health, "/livez", 200))
	o.until(o.tried(3))
	o.until(func() error { // one try may be several requests
		code, body, err := get(o.health, "/readyz")
		if err != nil || code != 503 || !strings.Contains(body, "the Kubernetes API does not answer") {
			return fmt.Errorf("/readyz: %d %s, %w", code, body, err)
		}
		return nil
	})
	o.until(answersWith(o.health, "/livez", 200))
	harness.OK(t, controllers.Same("lines about waiting", o.lines(waitingLine), 1))

	back()
	o.until(c.leads("one"))
	o.until(answersWith(o.health, "/readyz", 200))
	c.serves(o, "node-a")
	if o.Starts() != 1 || o.lines("the Kubernetes API answers") != 1 {
		t.Errorf("%d starts", o.Starts())
	}
	o.repeatsNothing()
}

// It can be ended while it waits.
func TestEndsWhileItWaits(t *testing.T) {
	c := newCluster(t)
	back := harness.WithoutAPIServer(t)
	o := c.start("one")
	o.until(answersWith(o.health, "/livez", 200))
	o.until(o.tried(1))
	harness.OK(t, o.Stop(limit))
	if code := o.ExitCode(); code != 0 || o.lines("level=ERROR") > 0 {
		t.Errorf("exit code %d", code)
	}
	back()
}

// An API server that will not have the operator ends it, and the last line says
// what is wrong.
func TestRefusedByTheAPIServer(t *testing.T) {
	c := newCluster(t)
	nobody := &corev1.ServiceAccount{}
	nobody.Namespace, nobody.Name = "default", "nobody"
	harness.OK(t, c.client.Create(t.Context(), nobody))
	t.Cleanup(func() { _ = c.client.Delete(context.Background(), nobody) })
	token, err := harness.ControlPlane.Token(t.Context(), types.NamespacedName{Namespace: "default", Name: "nobody"}, nil)
	harness.OK(t, err)
	own := harness.ControlPlane.ConfigWithToken(token)
	stranger := rest.CopyConfig(own)
	stranger.CAData = nil // whom the machine trusts has not made the API server's certificate

	var running []*process
	cases := []struct {
		config *rest.Config
		says   []string
	}{
		{own, []string{`resource "nodes"`, "cannot list", "deploy/chart"}},
		{harness.ControlPlane.ConfigWithToken("no-such-token"), []string{"provide credentials", "is --kubeconfig right"}},
		{stranger, []string{"certificate", "is --kubeconfig right"}},
	}
	for i, tt := range cases {
		c.use(tt.config)
		running = append(running, c.start(fmt.Sprintf("refused-%d", i)))
	}
	for i, tt := range cases {
		o := running[i]
		select {
		case <-o.Exited():
		case <-time.After(certainty + limit):
			t.Errorf("case %d: it goes on", i)
			continue
		}
		log := o.LogTail(1)
		for _, want := range tt.says {
			if !strings.Contains(log, want) {
				t.Errorf("case %d: lacks %q:\n%s", i, want, log)
			}
		}
		if o.ExitCode() != 1 || o.lines(waitingLine) == 0 {
			t.Errorf("case %d: exit code %d, said %d times that it waits", i, o.ExitCode(), o.lines(waitingLine))
		}
		o.repeatsNothing()
	}
}

// Kinds that are not installed yet are waited for.
func TestStartsBeforeItsKinds(t *testing.T) {
	c := newCluster(t)
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName("nodenetworks.berth.dev")
	harness.OK(t, c.client.Delete(t.Context(), crd))
	t.Cleanup(func() { harness.OK(t, harness.ControlPlane.InstallCRDs(context.Background(), deploy.CRDs())) })
	harness.Eventually(t, limit, "the kind is gone", func() error {
		if err := c.client.List(t.Context(), &v1alpha1.NodeNetworkList{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, or: %w", err)
		}
		return nil
	})
	o := c.start("one")
	o.until(func() error {
		if _, body, err := get(o.health, "/readyz"); err != nil || !strings.Contains(body, "apply deploy/chart") {
			return fmt.Errorf("%s, %w", body, err)
		}
		return nil
	})
	harness.OK(t, harness.ControlPlane.InstallCRDs(t.Context(), deploy.CRDs()))
	o.until(answersWith(o.health, "/readyz", 200))
	c.serves(o, "node-a")
}

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
		t.Errorf("it is not logged again after %v", logAgain)
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
	logged := make(chan string, 1)
	u := newUnwatched(slog.New(slog.NewTextHandler(writer(func(b []byte) {
		select {
		case logged <- string(b):
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
	case line := <-logged:
		if !strings.Contains(line, "kind=*v1.Pod") || !strings.Contains(line, "remedy=") {
			t.Error(line)
		}
	case <-ctx.Done():
		t.Error("nothing was logged")
	}
	cancel()
	<-ended
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
