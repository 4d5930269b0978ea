package addresspool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) {
	os.Exit(controllers.Main(m, harness.Kube, Watches(), func(ctx context.Context, mgr manager.Manager, log *slog.Logger) error {
		_, err := Setup(ctx, mgr, Options{Grace: time.Second, Sweep: time.Second, Logger: log})
		return err
	}))
}

// start runs the controllers as in an operator: with its service account, the generated role and
// the admission policies. API requests pass through the given transports. The returned function
// stops the controllers.
func start(t *testing.T, o Options, through ...transport.WrapperFunc) (c *Controller, end func()) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = controllers.Logger(t.Output())
	}
	end = controllers.Start(t, operatorConfig(t), Watches(), func(ctx context.Context, mgr manager.Manager) (err error) {
		c, err = Setup(ctx, mgr, o)
		return err
	}, through...)
	return c, end
}

func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	return harness.OperatorConfig(t, deploy.PoolMode)
}

func makePool(t *testing.T, name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	t.Helper()
	return controllers.Create(t, newPool(name, bits, cidrs...))
}

// makeOverlapping creates a pool, retrying until the overlap policy no longer rejects it.
func makeOverlapping(t *testing.T, name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	t.Helper()
	p := newPool(name, bits, cidrs...)
	eventually(t, "pool admitted without the overlap policy", func(c client.Client) error { return client.IgnoreAlreadyExists(c.Create(t.Context(), p)) })
	return p
}

// newPool returns a pool that has not been created.
func newPool(name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	p := poolAt(name, 0, bits, cidrs...)
	p.UID, p.CreationTimestamp = "", metav1.Time{}
	return &p
}

func makeNode(t *testing.T, name string) {
	t.Helper()
	controllers.Create(t, nodeNamed(name))
}

// ask creates a BlockRequest as a node's daemon does.
func ask(t *testing.T, name, node, pool string) {
	t.Helper()
	r := requestNamed(name)
	r.Spec = v1alpha1.BlockRequestSpec{NodeName: node, PoolName: pool}
	controllers.Create(t, r)
}

// given requests a block and returns it.
func given(t *testing.T, name, node, pool string) *v1alpha1.AddressBlock {
	t.Helper()
	ask(t, name, node, pool)
	return answered(t, name)
}

// answered waits until a request has its block, and returns the block.
func answered(t *testing.T, name string) *v1alpha1.AddressBlock {
	t.Helper()
	r := controllers.Await(t, client.ObjectKey{Name: name}, "answered with a block", controllers.If(func(r *v1alpha1.BlockRequest) bool {
		return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete)
	}))
	b := blockNamed(r.Status.AddressBlockName)
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionFailed) || b.RequestUID != r.UID || b.NodeName != r.Spec.NodeName {
		t.Errorf("request %+v was answered with block %+v of another request or node", r, b)
	}
	return b
}

// failed waits until a request has failed with a reason and a message that contains word.
func failed(t *testing.T, name, reason, word string) {
	t.Helper()
	controllers.Await(t, client.ObjectKey{Name: name}, "fails", controllers.Has[*v1alpha1.BlockRequest](v1alpha1.ConditionFailed, metav1.ConditionTrue, reason, word))
}

func eventually(t *testing.T, what string, is func(client.Client) error) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, controllers.Limit, what, func() error { return is(c) })
}

// giveBack deletes and drains a block as a node's daemon does.
func giveBack(t *testing.T, name string) {
	t.Helper()
	b := blockNamed(name)
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), b))
	controllers.DropFinalizers(t, b)
}

// awaitDeletion waits until a block is being deleted or is gone.
func awaitDeletion(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" being deleted", func(c client.Client) error {
		b := blockNamed(name)
		err := c.Get(t.Context(), client.ObjectKeyFromObject(b), b)
		if err == nil && b.DeletionTimestamp == nil {
			err = errors.New("no deletionTimestamp")
		}
		return client.IgnoreNotFound(err)
	})
}

var (
	poolNamed    = controllers.Named[v1alpha1.AddressPool]
	blockNamed   = controllers.Named[v1alpha1.AddressBlock]
	requestNamed = controllers.Named[v1alpha1.BlockRequest]
	nodeNamed    = controllers.Named[corev1.Node]
)

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

// poolIs waits until check returns nil for a pool.
func poolIs(t *testing.T, name, what string, check func(*v1alpha1.AddressPool) error) {
	t.Helper()
	controllers.Await(t, client.ObjectKey{Name: name}, what, check)
}

// condition checks that a pool has a condition.
var condition = controllers.Has[*v1alpha1.AddressPool]

// counted checks the block counts in a pool's status.
func counted(total, allocated int64) func(*v1alpha1.AddressPool) error {
	return func(p *v1alpha1.AddressPool) error {
		if want := (v1alpha1.PoolCounts{Total: total, Allocated: allocated, Free: total - allocated}); p.Status.Blocks != want {
			return fmt.Errorf("status.blocks is not %+v", want)
		}
		return nil
	}
}
