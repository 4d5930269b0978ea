package addresspool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/crashsource"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(crashsource.Main(func() int { return harness.Kube(m.Run) }, child))
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
		o.Logger = sourcetest.Logger(t.Output())
	}
	c, mgr, err := assemble(t.Context(), cfg, o)
	harness.OK(t, err)
	return c, controllers.Run(t, mgr)
}

func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	return harness.OperatorConfig(t, deploy.PoolMode)
}

// assemble makes an operator that leads.
func assemble(ctx context.Context, cfg *rest.Config, o Options) (*Controller, manager.Manager, error) {
	mgr, err := controllers.Manager(cfg, Watches())
	if err != nil {
		return nil, nil, err
	}
	c, err := Setup(ctx, mgr, o)
	return c, mgr, err
}

// makePool makes a pool as a person does.
func makePool(t *testing.T, name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	t.Helper()
	p := newPool(name, bits, cidrs...)
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), p))
	return p
}

// makeOverlapping makes a pool as soon as no policy refuses it.
func makeOverlapping(t *testing.T, name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	t.Helper()
	p := newPool(name, bits, cidrs...)
	eventually(t, "the policy is off", func(c client.Client) error { return client.IgnoreAlreadyExists(c.Create(t.Context(), p)) })
	return p
}

// newPool is a pool that is to be made.
func newPool(name string, bits int32, cidrs ...string) *v1alpha1.AddressPool {
	p := poolAt(name, 0, bits, cidrs...)
	p.UID, p.CreationTimestamp = "", metav1.Time{}
	return &p
}

func makeNode(t *testing.T, name string) {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), nodeNamed(name)))
}

// ask makes a request as a node's daemon does.
func ask(t *testing.T, name, node, pool string) {
	t.Helper()
	r := requestNamed(name)
	r.Spec = v1alpha1.BlockRequestSpec{NodeName: node, PoolName: pool}
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
	b := blockNamed(name)
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), b))
	dropFinalizers(t, b)
}

// dropFinalizers has an object go, or be deleted without anybody who sees to it.
func dropFinalizers(t *testing.T, o client.Object) {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

// awaitDeletion waits until a block is being deleted.
func awaitDeletion(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is deleted", func(c client.Client) error {
		b := &v1alpha1.AddressBlock{}
		err := c.Get(t.Context(), client.ObjectKey{Name: name}, b)
		if err == nil && b.DeletionTimestamp == nil {
			err = errors.New("it is not")
		}
		return client.IgnoreNotFound(err)
	})
}

// awaitGone waits until an object is not there.
func awaitGone(t *testing.T, o client.Object) {
	t.Helper()
	eventually(t, o.GetName()+" goes", func(c client.Client) error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, or: %w", err)
		}
		return nil
	})
}

func poolNamed(name string) *v1alpha1.AddressPool {
	return &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func blockNamed(name string) *v1alpha1.AddressBlock {
	return &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func requestNamed(name string) *v1alpha1.BlockRequest {
	return &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
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
