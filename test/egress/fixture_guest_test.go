//go:build guest && e2e

package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// world is the lab of all tests of the package, raised by the first one. Tests run one after the
// other, and leave its nodes, daemons and operator running.
var world struct {
	once sync.Once
	lab  *lab.Lab
	err  error
}

func TestMain(m *testing.M) {
	code := harness.Main(m, "berthd", "berth", "berth-operator", "berth-egress")
	if l := world.lab; l != nil {
		var errs []error
		for _, p := range harness.Programs(l) {
			errs = append(errs, harness.BadLog(p))
		}
		if err := errors.Join(append(errs, l.Close(), l.Err(), os.RemoveAll(l.Dir))...); err != nil {
			fmt.Println("FAIL: the lab:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// raised is the lab, with all its programs ready.
func raised(t *testing.T) *lab.Lab {
	t.Helper()
	world.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		world.lab, world.err = harness.Start(ctx, lab.Options{
			Mode: lab.PoolMode, Egress: true, Nodes: 3, RestartOperators: true,
			DaemonArgs: append(slices.Clone(lab.EgressArgs), "--egress-gateway-wait=20s"), Pools: lab.EgressPools(),
		})
	})
	harness.OK(t, world.err)
	t.Cleanup(func() {
		if t.Failed() {
			tellLogs(t, world.lab)
		}
	})
	harness.OK(t, world.lab.WaitReady(harness.Deadline(t, harness.Patience)))
	return world.lab
}

// tellLogs shows the end of the logs of programs and gateways.
func tellLogs(t *testing.T, l *lab.Lab) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(l.Dir, "log", "*.log"))
	for _, n := range l.Nodes() {
		files = append(files, n.LogFile())
	}
	for _, f := range files {
		t.Logf("end of %s:\n%s", filepath.Base(f), proc.Tail(f, 15))
	}
}

// egress is an Egress with gateways in a namespace of its own, and its clients.
type egress struct {
	t   *testing.T
	lab *lab.Lab
	key types.NamespacedName // of the Egress
}

// change is a test's change of an Egress.
type change = func(*v1alpha1.EgressSpec)

// replicas sets the number of gateways.
func replicas(n int32) change {
	return func(s *v1alpha1.EgressSpec) { s.Replicas = &n }
}

// newEgress creates a namespace with the Egress "way", whose destinations are the addresses of the
// host outside. It has two gateways unless changes say otherwise, and may be used by pods of the
// namespace "NAME-clients" that name it. newEgress returns once all gateways are ready. All of it is
// removed when the test ends.
func newEgress(t *testing.T, name string, changes ...change) *egress {
	t.Helper()
	s := &egress{t: t, lab: raised(t), key: types.NamespacedName{Namespace: name, Name: "way"}}
	ctx := harness.Deadline(t, harness.Patience)
	harness.OK(t, s.lab.Kube.CreateNamespace(ctx, name, map[string]string{"berth.dev/pool": lab.GatewayPool}))
	harness.OK(t, s.lab.Kube.CreateNamespace(ctx, s.clients(), nil))
	two := int32(2)
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: s.key.Name},
		Spec: v1alpha1.EgressSpec{
			Destinations:      []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"},
			Replicas:          &two,
			SessionAffinity:   corev1.ServiceAffinityNone,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{s.clients()}},
		},
	}
	for _, c := range changes {
		c(&e.Spec)
	}
	harness.OK(t, s.lab.Kube.Client.Create(ctx, e))
	t.Cleanup(s.end)
	s.gateways(int(*e.Spec.Replicas))
	return s
}

// clients is the namespace of the Egress's clients.
func (s *egress) clients() string { return s.key.Namespace + "-clients" }

// end removes the clients, the Egress and its gateways.
func (s *egress) end() {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for _, n := range s.lab.Nodes() {
		for _, p := range n.Pods() {
			if p.Namespace == s.clients() || p.Namespace == s.key.Namespace && p.Object == nil {
				if err := n.DelPod(ctx, p.Name); err != nil {
					s.t.Error(err)
				}
			}
		}
	}
	e := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}}
	if err := s.lab.Kube.Client.Delete(ctx, e); client.IgnoreNotFound(err) != nil {
		s.t.Error(err)
	}
	// No test needs their connections any more.
	if err := poll.Until(ctx, func() error {
		left := s.lab.Gateways(s.key)
		for _, g := range left {
			if err := g.Kill(); err != nil {
				return err
			}
		}
		return harness.Equal("gateways", len(left), 0)
	}); err != nil {
		s.t.Error(err)
	}
}

// gateways waits until the Egress has a number of gateways, all ready and none ending, and returns
// their addresses with their names.
func (s *egress) gateways(n int) map[netip.Addr]string {
	s.t.Helper()
	addrs, err := s.lab.Kube.WaitGateways(harness.Deadline(s.t, harness.Patience), s.key, n)
	harness.OK(s.t, err)
	return addrs
}

// edit changes the Egress.
func (s *egress) edit(c change) {
	s.t.Helper()
	harness.OK(s.t, s.lab.Kube.EditEgress(harness.Deadline(s.t, harness.Patience), s.key, func(e *v1alpha1.Egress) { c(&e.Spec) }))
}

// client makes a pod that names the Egress.
func (s *egress) client(n *node.Node, name string) *node.Pod {
	s.t.Helper()
	p, err := n.AddPod(harness.Deadline(s.t, harness.Patience), name, s.named())
	harness.OK(s.t, err)
	return p
}

// named are options of a pod that names the Egress.
func (s *egress) named() node.PodOptions {
	return node.PodOptions{Namespace: s.clients(), Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + s.key.Namespace: s.key.Name}}
}

// outside are the addresses of the host outside, which are the Egress's destinations.
var outside = []netip.Addr{site.OutsideHost, site.OutsideHost6}

// answerWithin only ends what hangs.
const answerWithin = 20 * time.Second

// seenAs asks the host outside, by a new connection, which address it sees.
func seenAs(ctx context.Context, p *node.Pod, network string, to netip.Addr, within time.Duration) (netip.Addr, error) {
	one, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := echo.Ask(one, p.Netns(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "hello")
	if err != nil {
		return netip.Addr{}, fmt.Errorf("pod %s to %s by %s: %w", p.Name, to, network, err)
	}
	return r.You, nil
}

// reaches waits until a pod reaches the host outside in both families by one of the gateways, or by
// any if there is none given. It fails at once if the pod is seen with its own address.
func (s *egress) reaches(p *node.Pod, by map[netip.Addr]string) {
	s.t.Helper()
	for _, to := range outside {
		leaked := false
		harness.Eventually(s.t, harness.Patience, fmt.Sprintf("pod %s reaches %s", p.Name, to), func() error {
			as, err := seenAs(s.t.Context(), p, "tcp", to, answerWithin)
			if err != nil {
				return err
			}
			if slices.Contains(p.Addrs, as) {
				leaked = true
				return nil
			}
			if _, ok := by[as]; !ok && by != nil {
				return fmt.Errorf("it is seen as %s, want one of %v", as, by)
			}
			return nil
		})
		if leaked {
			s.t.Fatalf("pod %s reached %s by its own address", p.Name, to)
		}
	}
}

// metrics are a gateway's metrics.
func (s *egress) metrics(g *lab.Gateway) string {
	s.t.Helper()
	text, err := ns.Get(harness.Deadline(s.t, time.Minute), g.Pod.Netns(), fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(g.Pod.Addr(), v1alpha1.EgressHealthPort)))
	harness.OK(s.t, err)
	return text
}

// isGateway reports whether an address is in a network of gateways.
func isGateway(a netip.Addr) bool {
	return netip.MustParsePrefix(lab.GatewayNetworks.IPv4).Contains(a) || netip.MustParsePrefix(lab.GatewayNetworks.IPv6).Contains(a)
}
