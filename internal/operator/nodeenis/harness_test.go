package nodeenis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// script is a fleet that does nothing by itself: tests play it. Once an operator
// works with it, it has that too.
type script struct {
	*operator

	mu       sync.Mutex // guards all below
	settings map[string]eni.Settings
	seeds    map[string]eni.Inventory
	nodes    map[string]fleet.Node
	calls    map[call]int
	says     map[string]cloud.Instance // what the cloud does of instances
}

// call is a method of the fleet that was called, and for which node.
type call struct{ method, node string }

func newScript() *script {
	return &script{
		settings: map[string]eni.Settings{}, seeds: map[string]eni.Inventory{}, nodes: map[string]fleet.Node{},
		calls: map[call]int{}, says: map[string]cloud.Instance{},
	}
}

// setUp begins a test with node-1 and an operator.
func setUp(t *testing.T, o Options, through ...transport.WrapperFunc) (*script, *node) {
	t.Helper()
	harness.KubeClean(t)
	create(t, "node-1", nil)
	return play(t, o, through...)
}

// play starts an operator with a fleet that the test plays, and returns that, and
// its side of node-1.
func play(t *testing.T, o Options, through ...transport.WrapperFunc) (*script, *node) {
	t.Helper()
	s := newScript()
	o.Fleet = s
	s.operator = start(t, o, through...)
	return s, s.node(t, "node-1")
}

// Set implements Fleet, as the others do.
func (s *script) Set(name, _ string, st eni.Settings, seed eni.Inventory, n fleet.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] != n {
		s.seeds[name] = seed
	}
	s.settings[name], s.nodes[name] = st, n
	s.calls[call{"Set", name}]++
	return nil
}

func (s *script) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

func (s *script) Describe(_ context.Context, id string) (cloud.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.says[id]
	if !ok {
		return in, &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: id}
	}
	return in, nil
}

func (s *script) Kick(name string)          { s.count("Kick", name) }
func (s *script) Invalidate(name string)    { s.count("Invalidate", name) }
func (s *script) CheckInstance(name string) { s.count("CheckInstance", name) }

func (s *script) count(method, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[call{method, name}]++
}

// called is how often a method was called for node-1.
func (s *script) called(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call{method, "node-1"}]
}

func (s *script) awaitCalls(t *testing.T, method string, want int) {
	t.Helper()
	controllers.AwaitValue(t, method, func() int { return s.called(method) }, want)
}

// seed is what the fleet learns was published of node-1.
func (s *script) seed() eni.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seeds["node-1"]
}

// node waits until the controller has passed a node on.
func (s *script) node(t *testing.T, name string) *node {
	t.Helper()
	return s.another(t, name, nil)
}

// another waits until the controller has passed another node of a name on.
func (s *script) another(t *testing.T, name string, than *node) (n *node) {
	t.Helper()
	await(t, "the fleet has node "+name, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n, _ = s.nodes[name].(*node)
		return n != nil && n != than
	})
	return n
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, what, poll.True(is))
}

func awaitUsage(t *testing.T, n *node, is func(eni.Usage) bool) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, "use is seen", func() error {
		if u := n.Usage(); !is(u) {
			return fmt.Errorf("%+v", u)
		}
		return nil
	})
}

// operator is a controller at work under the operator's service account, with
// its generated role and the admission policies.
type operator struct {
	*Controller
	end func() // returns when it has ended
}

// start takes what its requests go through, besides.
func start(t *testing.T, o Options, through ...transport.WrapperFunc) *operator {
	t.Helper()
	if o.Logger == nil {
		o.Logger = controllers.Logger(t.Output())
	}
	var c *Controller
	end := controllers.Start(t, harness.OperatorConfig(t, deploy.OperatorMode), Watches(), func(_ context.Context, mgr manager.Manager) (err error) {
		c, err = Setup(mgr, o)
		return err
	}, through...)
	return &operator{c, end}
}

const instance = "i-0123456789abcdef0"

// register makes a Node of an instance, or of none.
func register(t *testing.T, name, instanceID string) {
	t.Helper()
	k := bareNode(name)
	if instanceID != "" {
		k.Spec.ProviderID = "aws:///zone-a/" + instanceID
	}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), k))
}

var bareNode = controllers.Named[corev1.Node]

// replace makes a node's Node anew, as that of an instance or of none.
func replace(t *testing.T, name, instanceID string) {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), bareNode(name)))
	register(t, name, instanceID)
}

// create makes a Node and its object, as a kubelet and a daemon do. The instance
// of node-1 is instance.
func create(t *testing.T, name string, change func(*v1alpha1.NodeNetwork)) *v1alpha1.NodeNetwork {
	t.Helper()
	o := objectOf(name, instance)
	if name != "node-1" {
		o.Spec.InstanceID = fmt.Sprintf("i-%017x", crc32.ChecksumIEEE([]byte(name)))
	}
	register(t, name, o.Spec.InstanceID)
	if change != nil {
		change(o)
	}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), o))
	return o
}

// objectOf is an object as a daemon makes it.
func objectOf(name, instanceID string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: instanceID, InstanceType: "m5.large"},
	}
}

func get(t *testing.T, name string) *v1alpha1.NodeNetwork {
	t.Helper()
	o := controllers.Get[v1alpha1.NodeNetwork](t, client.ObjectKey{Name: name})
	return o
}

func until(t *testing.T, name, what string, is func(*v1alpha1.NodeNetwork) error) *v1alpha1.NodeNetwork {
	t.Helper()
	return controllers.Await(t, client.ObjectKey{Name: name}, what, is)
}

// slow tells an API server that did not answer in time from one that refuses.
func slow(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &status) && kube.Unavailable(err)
}

// publish has a node publish an inventory.
func publish(t *testing.T, n *node, inv eni.Inventory) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, "published", func() error {
		err := n.Publish(t.Context(), inv)
		if err != nil && !slow(err) {
			t.Fatal(err)
		}
		if f, ok := n.c.o.Clock.(*clock.Fake); ok && err != nil {
			f.Advance(2 * retry.First) // it makes no request before
		}
		return err
	})
}

// rejected wants an inventory not to be published, for a reason.
func rejected(t *testing.T, n *node, inv eni.Inventory, why error) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, "rejected", func() error {
		err := n.Publish(t.Context(), inv)
		if errors.Is(err, why) {
			return nil
		}
		if !slow(err) {
			t.Fatalf("got %v, want %v", err, why)
		}
		return err
	})
}

// available reports whether exactly these may be used.
func available(want ...string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error { return sameList("available", keys(o.Spec.IPAM.Available), want) }
}

// releasing reports whether exactly these are to go back.
func releasing(want ...string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		return sameList("releasing", slices.Clone(o.Spec.IPAM.Releasing), want)
	}
}

// unassigning reports whether exactly these are with EC2.
func unassigning(want ...string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		return sameList("unassigning", slices.Clone(o.Spec.IPAM.Unassigning), want)
	}
}

// degraded reports whether an object is degraded for a reason, or as expected.
func degraded(reason string) func(*v1alpha1.NodeNetwork) error {
	status := metav1.ConditionTrue
	if reason == reasonAsExpected {
		status = metav1.ConditionFalse
	}
	return controllers.Has[*v1alpha1.NodeNetwork](v1alpha1.ConditionDegraded, status, reason)
}

// awaitDegraded waits until an object is refused for a reason, or for none.
func awaitDegraded(t *testing.T, name, reason string) {
	t.Helper()
	until(t, name, "degraded as "+reason, func(o *v1alpha1.NodeNetwork) error {
		r := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		if reason != reasonAsExpected && (r == nil || r.Reason != reason) {
			return fmt.Errorf("%+v", o.Status.Conditions)
		}
		return degraded(reason)(o)
	})
}

// patch changes node-1's object as a person does, by a JSON merge patch.
func patch(t *testing.T, body string) *v1alpha1.NodeNetwork {
	t.Helper()
	o := controllers.Named[v1alpha1.NodeNetwork]("node-1")
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner("kubectl-edit")))
	return o
}

func keys[V any](m map[string]V) []string { return slices.Collect(maps.Keys(m)) }

func sameList(what string, have, want []string) error {
	slices.Sort(have)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s: have %v, want %v", what, have, want)
	}
	return nil
}

// report plays the daemon.
func report(t *testing.T, name string, s v1alpha1.IPAMStatus) {
	t.Helper()
	s.UsedCount = int32(len(s.Used))
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork",
		"metadata": map[string]any{"name": name}, "status": map[string]any{"ipam": s},
	})
	harness.OK(t, err)
	o := controllers.Named[v1alpha1.NodeNetwork](name)
	harness.OK(t, harness.KubeClient(t).Status().Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, body),
		client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerDaemon)))
}

// used are addresses with a pod each.
func used(addrs ...string) map[string]v1alpha1.UsedAddress {
	out := map[string]v1alpha1.UsedAddress{}
	for _, a := range addrs {
		out[a] = v1alpha1.UsedAddress{Owner: "default/" + a, UID: "uid-" + a, Resource: "eni-1"}
	}
	return out
}

// inventory is an instance with eth0 and, from device index 1, ENIs of these
// addresses and prefixes.
func inventory(enis ...[]string) eni.Inventory {
	inv := eni.Inventory{
		InstanceID: instance, InstanceType: "m5.large", Limits: cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, Prefixes: true},
		ENIs: []eni.ENI{{
			ID: "eni-0", MAC: mac.Addr{2, 0, 0, 0, 0, 0}, Primary: true, SubnetID: "subnet-1",
			Subnet: netip.MustParsePrefix("10.0.0.0/16"), PrimaryIPv4: netip.MustParseAddr("10.0.255.10"),
		}},
		At: time.Now(),
	}
	for i, list := range enis {
		e := eni.ENI{
			ID: fmt.Sprintf("eni-%d", i+1), MAC: mac.Addr{2, 0, 0, 0, 0, byte(i + 1)}, DeviceIndex: i + 1, Serves: true, SubnetID: "subnet-1",
			Subnet: netip.MustParsePrefix("10.0.0.0/16"), PrimaryIPv4: netip.AddrFrom4([4]byte{10, 0, 255, byte(11 + i)}),
		}
		for _, text := range list {
			p, err := nodenetwork.Parse(text)
			if err != nil {
				panic(err)
			}
			switch kindOf(p) {
			case kind{ipfamily.IPv4, true}:
				e.Addresses = append(e.Addresses, p.Addr())
			case kind{ipfamily.IPv4, false}:
				e.Prefixes = append(e.Prefixes, p)
			case kind{ipfamily.IPv6, true}:
				e.IPv6 = append(e.IPv6, p.Addr())
			default:
				e.IPv6Prefixes = append(e.IPv6Prefixes, p)
			}
		}
		inv.ENIs = append(inv.ENIs, e)
	}
	return inv
}
