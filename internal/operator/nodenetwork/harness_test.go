package nodenetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"

	"github.com/berthnet/berth/api/v1alpha1"
	operatormode "github.com/berthnet/berth/deploy/operator-mode"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/lab/run/kube"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// limit is for what takes a moment on a machine with nothing else to do.
const limit = 3 * time.Minute

// script is a fleet that does nothing by itself: tests play it.
type script struct {
	mu          sync.Mutex // guards all below
	settings    map[string]eni.Settings
	seeds       map[string]eni.Inventory
	nodes       map[string]fleet.Node
	sets        map[string]int
	kicks       map[string]int
	invalidated map[string]int
	checked     map[string]int
	says        map[string]cloud.Instance // what the cloud does of instances
}

func newScript() *script {
	return &script{
		settings: map[string]eni.Settings{}, seeds: map[string]eni.Inventory{}, nodes: map[string]fleet.Node{},
		sets: map[string]int{}, kicks: map[string]int{}, invalidated: map[string]int{}, checked: map[string]int{},
		says: map[string]cloud.Instance{},
	}
}

func (s *script) Set(name, _ string, st eni.Settings, seed eni.Inventory, n fleet.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] != n {
		s.seeds[name] = seed
	}
	s.settings[name], s.nodes[name] = st, n
	s.sets[name]++
	return nil
}

func (s *script) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

// Describe implements Fleet.
func (s *script) Describe(_ context.Context, id string) (cloud.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.says[id]
	if !ok {
		return in, &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: id}
	}
	return in, nil
}

func (s *script) Kick(name string)       { s.count(s.kicks, name) }
func (s *script) Invalidate(name string) { s.count(s.invalidated, name) }

func (s *script) CheckInstance(name string) { s.count(s.checked, name) }

func (s *script) count(m map[string]int, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[name]++
}

func (s *script) of(m map[string]int, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m[name]
}

// node waits until the controller has told of a node.
func (s *script) node(t *testing.T, name string) *node {
	t.Helper()
	var out fleet.Node
	harness.Eventually(t, limit, "the fleet has node "+name, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if out = s.nodes[name]; out == nil {
			return fmt.Errorf("it has %d others", len(s.nodes))
		}
		return nil
	})
	return out.(*node)
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
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), operatormode.Roles))
	account := types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}
	token, err := harness.ControlPlane.Token(t.Context(), account, nil)
	harness.OK(t, err)
	scheme := runtime.NewScheme()
	harness.OK(t, clientscheme.AddToScheme(scheme))
	harness.OK(t, v1alpha1.AddToScheme(scheme))
	cfg := harness.ControlPlane.ConfigWithToken(token)
	for _, w := range through {
		cfg.Wrap(w)
	}
	mgr, err := manager.New(cfg, ctrl.Options{
		Scheme: scheme, Cache: cache.Options{ByObject: watched.ByObject(Watches())},
		Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	})
	harness.OK(t, err)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c, err := Setup(mgr, o)
	harness.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	op := &operator{Controller: c, end: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controller: %v", err)
		}
	})}
	t.Cleanup(op.end)
	return op
}

const instance = "i-0123456789abcdef0"

// register makes a Node of an instance, or of none.
func register(t *testing.T, name, instanceID string) {
	t.Helper()
	k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if instanceID != "" {
		k.Spec.ProviderID = "aws:///zone-a/" + instanceID
	}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), k))
}

// replace makes a node's Node anew, as that of an instance or of none.
func replace(t *testing.T, name, instanceID string) {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	register(t, name, instanceID)
}

// create makes a Node and its object, as a kubelet and a daemon do. The instance
// of node-1 is instance.
func create(t *testing.T, name string, change func(*v1alpha1.NodeNetwork)) *v1alpha1.NodeNetwork {
	t.Helper()
	o := &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: "m5.large"},
	}
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

func get(t *testing.T, name string) *v1alpha1.NodeNetwork {
	t.Helper()
	o := &v1alpha1.NodeNetwork{}
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKey{Name: name}, o))
	return o
}

// until waits until an object is as it should be.
func until(t *testing.T, name, what string, is func(*v1alpha1.NodeNetwork) error) *v1alpha1.NodeNetwork {
	t.Helper()
	c := harness.KubeClient(t)
	o := &v1alpha1.NodeNetwork{}
	harness.Eventually(t, limit, what, func() error {
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
			return err
		}
		return is(o)
	})
	return o
}

// slow tells an API server that did not answer in time from one that refuses.
func slow(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &status) && kube.Away(err)
}

// publish has a node publish an inventory.
func publish(t *testing.T, n *node, inv eni.Inventory) {
	t.Helper()
	harness.Eventually(t, limit, "published", func() error {
		err := n.Publish(t.Context(), inv)
		if err != nil && !slow(err) {
			t.Fatal(err)
		}
		if f, ok := n.c.o.Clock.(*clock.Fake); ok && err != nil {
			f.Advance(2 * firstRetry) // it makes no request before
		}
		return err
	})
}

// rejected wants an inventory not to be published, for a reason.
func rejected(t *testing.T, n *node, inv eni.Inventory, why error) {
	t.Helper()
	harness.Eventually(t, limit, "rejected", func() error {
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

// available tells whether exactly these may be used.
func available(want ...string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error { return sameList("available", keys(o.Spec.IPAM.Available), want) }
}

// releasing tells whether exactly these are to go back.
func releasing(want ...string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		return sameList("releasing", slices.Clone(o.Spec.IPAM.Releasing), want)
	}
}

func keys[V any](m map[string]V) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

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
	o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
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
			ID: "eni-0", MAC: eni.MAC{2, 0, 0, 0, 0, 0}, Primary: true, SubnetID: "subnet-1",
			Subnet: netip.MustParsePrefix("10.0.0.0/16"), PrimaryIPv4: netip.MustParseAddr("10.0.255.10"),
		}},
		At: time.Now(),
	}
	for i, list := range enis {
		e := eni.ENI{
			ID: fmt.Sprintf("eni-%d", i+1), MAC: eni.MAC{2, 0, 0, 0, 0, byte(i + 1)}, DeviceIndex: i + 1, Serves: true, SubnetID: "subnet-1",
			Subnet: netip.MustParsePrefix("10.0.0.0/16"), PrimaryIPv4: netip.AddrFrom4([4]byte{10, 0, 255, byte(11 + i)}),
		}
		for _, text := range list {
			p, err := nodenetwork.Parse(text)
			if err != nil {
				panic(err)
			}
			if p.IsSingleIP() {
				e.Addresses = append(e.Addresses, p.Addr())
			} else {
				e.Prefixes = append(e.Prefixes, p)
			}
		}
		inv.ENIs = append(inv.ENIs, e)
	}
	return inv
}
