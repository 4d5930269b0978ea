package egress

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) {
	os.Exit(controllers.Main(m, harness.KubeWithControllers, Watches(), func(ctx context.Context, mgr manager.Manager, log *slog.Logger) error {
		_, err := setUp(ctx, mgr, Options{Logger: log})
		return err
	}))
}

// world is a namespace of its own in a cluster with Kubernetes' controllers, and an
// operator.
type world struct {
	t      *testing.T
	client client.Client
	ns     string
	c      *Controller
	end    func()
}

var settings = gatewayplan.Settings{Image: "registry.example.com/berth-egress:v1", Port: 5555}

func start(t *testing.T) *world {
	t.Helper()
	w := stage(t)
	w.run(Options{})
	return w
}

// stage is a world without an operator.
func stage(t *testing.T) *world {
	t.Helper()
	harness.KubeClean(t)
	w := &world{t: t, client: harness.KubeClient(t)}
	ns := controllers.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "egress-"}})
	w.ns = ns.Name
	return w
}

// run starts an operator, under its account, with its roles and policies, each request
// through some transports.
func (w *world) run(o Options, through ...transport.WrapperFunc) {
	w.t.Helper()
	o.Logger = controllers.Logger(w.t.Output())
	w.end = controllers.Start(w.t, operatorConfig(w.t), Watches(), func(ctx context.Context, mgr manager.Manager) (err error) {
		w.c, err = setUp(ctx, mgr, o)
		return err
	}, through...)
}

func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	r := deploy.InMode(deploy.PoolMode, "test")
	image, tag, _ := strings.Cut(settings.Image, ":") // the policies let it be no other
	r.Values["egress"] = map[string]any{"enabled": true, "image": map[string]any{"repository": image, "tag": tag}}
	return harness.OperatorConfigOf(t, r)
}

func setUp(ctx context.Context, mgr manager.Manager, o Options) (*Controller, error) {
	o.Settings = settings
	o.Retry = cmp.Or(o.Retry, time.Second)
	if err := Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	return Setup(mgr, o)
}

// egress makes one.
func (w *world) egress(name string, spec v1alpha1.EgressSpec) *v1alpha1.Egress {
	w.t.Helper()
	if spec.Destinations == nil {
		spec.Destinations = []string{"0.0.0.0/0"}
	}
	e := controllers.Create(w.t, &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: spec})
	return e
}

// change merges fields into an object, as a person does.
func (w *world) change(o client.Object, format string, args ...any) {
	w.t.Helper()
	controllers.Merge(w.t, o, format, args...)
}

// key is that of an object in the namespace.
func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.ns, Name: name}
}

func isThere[O client.Object](O) error { return nil }

func (w *world) deployment(name, what string, is func(*appsv1.Deployment) error) *appsv1.Deployment {
	w.t.Helper()
	return controllers.Await(w.t, w.key(name), what, is)
}

func (w *world) service(name, what string, is func(*corev1.Service) error) *corev1.Service {
	w.t.Helper()
	return controllers.Await(w.t, w.key(name), what, is)
}

func (w *world) status(name, what string, is func(v1alpha1.EgressStatus) error) *v1alpha1.Egress {
	w.t.Helper()
	return controllers.Await(w.t, w.key(name), what, func(e *v1alpha1.Egress) error { return is(e.Status) })
}

// conditionIs wants a condition to have a status, a reason, and words in its message.
func conditionIs(kind string, status metav1.ConditionStatus, reason string, words ...string) func(v1alpha1.EgressStatus) error {
	return func(st v1alpha1.EgressStatus) error {
		return controllers.Condition(st.Conditions, kind, status, reason, words...)
	}
}

// pods waits for so many gateways' pods, made by the Deployment's controller.
func (w *world) pods(name string, n int) []corev1.Pod {
	w.t.Helper()
	list := &corev1.PodList{}
	harness.Eventually(w.t, controllers.Limit, fmt.Sprintf("%d pods of %s", n, name), func() error {
		if err := w.client.List(w.t.Context(), list, client.InNamespace(w.ns), client.MatchingLabels(gatewayplan.Labels(name))); err != nil {
			return err
		}
		var alive []corev1.Pod
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil {
				alive = append(alive, p)
			}
		}
		if list.Items = alive; len(alive) != n {
			return fmt.Errorf("there are %d", len(alive))
		}
		return nil
	})
	return list.Items
}

// ready says of a pod what a kubelet does, once its gateway is ready, or is not any more.
func (w *world) ready(p corev1.Pod, is corev1.ConditionStatus, ips ...string) {
	w.t.Helper()
	body := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q}]`, is)
	if len(ips) > 0 {
		body += fmt.Sprintf(`,"podIP":%q,"podIPs":[{"ip":"%s"}]`, ips[0], strings.Join(ips, `"},{"ip":"`))
	}
	harness.OK(w.t, w.client.Status().Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(body+"}}"))))
}

func (w *world) owned(name string) (out []string) {
	for _, o := range []client.Object{
		&corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &corev1.Service{}, &policyv1.PodDisruptionBudget{}, &appsv1.Deployment{},
	} {
		err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, o)
		if err == nil {
			out = append(out, strings.TrimPrefix(fmt.Sprintf("%T", o), "*"))
		} else if !apierrors.IsNotFound(err) {
			w.t.Error(err)
		}
	}
	return out
}

func (w *world) awaitGone(o client.Object, name string) {
	w.t.Helper()
	o.SetNamespace(w.ns)
	o.SetName(name)
	controllers.AwaitGone(w.t, o)
}
