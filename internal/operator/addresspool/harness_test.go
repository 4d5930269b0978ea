package addresspool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/api/v1alpha1"
	poolmode "github.com/berthnet/berth/deploy/pool-mode"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	if kubeconfig := os.Getenv(childVar); kubeconfig != "" {
		os.Exit(child(kubeconfig))
	}
	os.Exit(harness.Kube(m.Run))
}

// limit is for what takes a second on an idle machine.
const limit = 3 * time.Minute

// start runs the controllers as an operator does: under its service account, with
// the generated role and the admission policies, each request through some
// transports. The returned function ends them.
func start(t *testing.T, o Options, through ...transport.WrapperFunc) (c *Controller, end func()) {
	t.Helper()
	cfg := operatorConfig(t)
	for _, w := range through {
		cfg.Wrap(w)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, mgr, err := assemble(ctx, cfg, o)
	harness.OK(t, err)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controllers: %v", err)
		}
	})
	t.Cleanup(end)
	return c, end
}

// operatorConfig is the operator's way to the API server.
func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), poolmode.Roles))
	account := types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}
	token, err := harness.ControlPlane.Token(t.Context(), account, nil)
	harness.OK(t, err)
	return harness.ControlPlane.ConfigWithToken(token)
}

// assemble makes an operator that leads.
func assemble(ctx context.Context, cfg *rest.Config, o Options) (*Controller, manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	mgr, err := manager.New(cfg, ctrl.Options{
		Scheme: scheme, Cache: cache.Options{ByObject: watched.ByObject(Watches())},
		Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := Setup(ctx, mgr, o)
	return c, mgr, err
}

// makePool makes a pool as a person does.
func makePool(t *testing.T, name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	t.Helper()
	p := poolAt(name, 0, bits, cidrs...)
	p.UID, p.CreationTimestamp = "", metav1.Time{}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), &p))
	return &p
}

func makeNode(t *testing.T, name string) {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// ask makes a request as a node's daemon does.
func ask(t *testing.T, name, node, pool string) {
	t.Helper()
	r := &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BlockRequestSpec{NodeName: node, PoolName: pool}}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), r))
}

// given asks for a block and returns it.
func given(t *testing.T, name, node, pool string) *v1alpha1.AddressBlock {
	t.Helper()
	ask(t, name, node, pool)
	return answered(t, name)
}

// answered waits for the block of a request.
func answered(t *testing.T, name string) *v1alpha1.AddressBlock {
	t.Helper()
	r, b := &v1alpha1.BlockRequest{}, &v1alpha1.AddressBlock{}
	eventually(t, "a block for "+name, func(c client.Client) error {
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, r); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) {
			return fmt.Errorf("status %+v", r.Status)
		}
		return c.Get(t.Context(), client.ObjectKey{Name: r.Status.AddressBlockName}, b)
	})
	if meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionFailed) || b.RequestUID != r.UID || b.NodeName != r.Spec.NodeName {
		t.Errorf("request %+v got block %+v", r, b)
	}
	return b
}

// failed waits until a request has failed for a reason.
func failed(t *testing.T, name, reason, word string) {
	t.Helper()
	eventually(t, name+" fails", func(c client.Client) error {
		r := &v1alpha1.BlockRequest{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, r); err != nil {
			return err
		}
		f := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
		if f == nil || f.Status != metav1.ConditionTrue || f.Reason != reason || !strings.Contains(f.Message, word) {
			return fmt.Errorf("conditions %+v", r.Status.Conditions)
		}
		return nil
	})
}

func eventually(t *testing.T, what string, is func(client.Client) error) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, limit, what, func() error { return is(c) })
}

// giveBack ends a block as a node's daemon does.
func giveBack(t *testing.T, name string) {
	t.Helper()
	c := harness.KubeClient(t)
	b := &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}
	harness.OK(t, c.Delete(t.Context(), b))
	harness.OK(t, c.Patch(t.Context(), b, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

// blocksNow lists the blocks there are, by name.
func blocksNow(t *testing.T) (names []string) {
	t.Helper()
	list := &v1alpha1.AddressBlockList{}
	harness.OK(t, harness.KubeClient(t).List(t.Context(), list))
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return names
}

// poolIs waits until a pool is as it should be.
func poolIs(t *testing.T, name, what string, is func(*v1alpha1.AddressPool) error) {
	t.Helper()
	eventually(t, what, func(c client.Client) error {
		p := &v1alpha1.AddressPool{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, p); err != nil {
			return err
		}
		return is(p)
	})
}

// condition wants a condition of a pool to have a status and a reason.
func condition(kind string, status metav1.ConditionStatus, reason string) func(*v1alpha1.AddressPool) error {
	return func(p *v1alpha1.AddressPool) error {
		c := meta.FindStatusCondition(p.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("conditions %+v", p.Status.Conditions)
		}
		return nil
	}
}

// counted wants a pool to count its blocks so.
func counted(total, allocated int64) func(*v1alpha1.AddressPool) error {
	return func(p *v1alpha1.AddressPool) error {
		if want := (v1alpha1.PoolCounts{Total: total, Allocated: allocated, Free: total - allocated}); p.Status.Blocks != want {
			return fmt.Errorf("blocks %+v, want %+v", p.Status.Blocks, want)
		}
		return nil
	}
}

// lossy loses replies to some requests, keeps others from being sent, and makes
// all wait for up to latency.
type lossy struct {
	next    http.RoundTripper
	latency time.Duration
	bad     func(*http.Request) (lost, unsent bool) // called concurrently
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	<-time.After(rand.N(l.latency)) // what is injected, not a wait for anything
	lost, unsent := l.bad(r)
	if unsent {
		return nil, errors.New("the test does not send this")
	}
	reply, err := l.next.RoundTrip(r)
	if err == nil && lost {
		_ = reply.Body.Close()
		return nil, errors.New("the test lost the reply")
	}
	return reply, err
}
