//go:build guest

package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/network/echo"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/lab/network/site"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// scene is a lab whose pods reach the outside by an Egress, which tests change.
type scene struct {
	t   *testing.T
	lab *lab.Lab
	key types.NamespacedName // of the Egress
}

// liveNetworks are the addresses of gateways.
var liveNetworks = v1alpha1.PoolSubnet{IPv4: "198.51.101.0/27", IPv6: "2001:db8:51::/123"}

const (
	selectedNamespace = "bank" // whose pods with the label are clients
	namedNamespace    = "shop" // whose pods may name the Egress
	fouPort           = 5555
)

// both are the hosts outside, of either family.
var both = []netip.Addr{site.OutsideHost, site.OutsideHost6}

func raiseScene(t *testing.T, daemonArgs ...string) *scene {
	s := &scene{t: t, key: types.NamespacedName{Namespace: "egress", Name: "internet"}}
	s.lab = harness.Raise(t, lab.Options{
		Mode: lab.PoolMode, Nodes: 2, Egress: true, RestartOperators: true,
		DaemonArgs: append([]string{"--repair-interval=2s", "--cooling-period=1s"}, daemonArgs...),
		Pools:      append(lab.DefaultPools(), lab.Pool("gateways", 0, liveNetworks)),
		Progress:   func(what string) { t.Log(what) },
	})
	ctx := s.ctx()
	harness.OK(t, s.lab.Kube.CreateNamespace(ctx, s.key.Namespace, map[string]string{"berth.dev/pool": "gateways"}))
	for _, name := range []string{namedNamespace, selectedNamespace} {
		harness.OK(t, s.lab.Kube.CreateNamespace(ctx, name, nil))
	}
	return s
}

func (s *scene) ctx() context.Context { return harness.Deadline(s.t, harness.Patience) }

// in is the scene in a test of its own.
func (s *scene) in(t *testing.T) *scene {
	of := *s
	of.t = t
	return &of
}

// egress is the Egress that tests begin with.
func (s *scene) egress(replicas int32) *v1alpha1.Egress {
	return &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name},
		Spec: v1alpha1.EgressSpec{
			Destinations: []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}, Replicas: &replicas,
			SessionAffinity:   corev1.ServiceAffinityNone,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namedNamespace}},
			Clients: &v1alpha1.EgressClientSelector{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "live"}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"out": "gateway"}},
			},
			Template: &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(`{"terminationGracePeriodSeconds":5}`)}},
		},
	}
}

func (s *scene) create(e *v1alpha1.Egress) {
	s.t.Helper()
	harness.OK(s.t, s.lab.Kube.Client.Create(s.ctx(), e))
}

func (s *scene) read() *v1alpha1.Egress {
	s.t.Helper()
	e := &v1alpha1.Egress{}
	harness.OK(s.t, s.lab.Kube.Client.Get(s.ctx(), s.key, e))
	return e
}

// edit changes the Egress as a person does with kubectl edit.
func (s *scene) edit(change func(*v1alpha1.EgressSpec)) {
	s.t.Helper()
	e := s.read()
	edited := e.DeepCopy()
	change(&edited.Spec)
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), edited, client.MergeFrom(e)))
}

func (s *scene) until(what string, is func() error) {
	s.t.Helper()
	began := time.Now()
	harness.Eventually(s.t, harness.Patience, what, is)
	s.t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
}

// gateways waits until the Egress has so many that are ready and none that ends.
func (s *scene) gateways(n int) (addrs []netip.Addr) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d gateways", n), func() error {
		e := s.read()
		addrs = nil
		for _, g := range e.Status.Gateways {
			for _, text := range g.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && !g.Ending {
					addrs = append(addrs, a)
				}
			}
		}
		if len(e.Status.Gateways) != n || int(e.Status.ReadyGateways) != n {
			return fmt.Errorf("it has %d, %d ready: %+v", len(e.Status.Gateways), e.Status.ReadyGateways, e.Status.Conditions)
		}
		return nil
	})
	return addrs
}

// named names the Egress in a pod's annotations.
func (s *scene) named() map[string]string {
	return map[string]string{v1alpha1.AnnotationEgressPrefix + s.key.Namespace: s.key.Name}
}

func (s *scene) add(at int, name string, o node.PodOptions) *node.Pod {
	s.t.Helper()
	p, err := s.lab.Nodes()[at].AddPod(s.ctx(), name, o)
	harness.OK(s.t, err)
	return p
}

// ask opens a connection from a pod, and returns as whom the outside sees it.
func ask(ctx context.Context, p *node.Pod, network string, to netip.Addr) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := echo.Ask(ctx, p.Netns(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "from "+p.Name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("pod %s to %s by %s: %w", p.Name, to, network, err)
	}
	return r.You, nil
}

// seenAs tells whether the outside sees a pod by one of these addresses.
func (s *scene) seenAs(p *node.Pod, to netip.Addr, by []netip.Addr) error {
	for _, network := range []string{"tcp", "udp"} {
		as, err := ask(s.ctx(), p, network, to)
		if err != nil {
			return err
		}
		if !slices.Contains(by, as) {
			return fmt.Errorf("pod %s is seen as %s by %s, want one of %v", p.Name, as, to, by)
		}
	}
	return nil
}

// byGateways and asItself wait until a pod reaches hosts outside so.
func (s *scene) byGateways(p *node.Pod, to ...netip.Addr) {
	s.t.Helper()
	s.until(fmt.Sprintf("pod %s by a gateway to %v", p.Name, to), func() error {
		var errs []error
		for _, a := range to {
			errs = append(errs, s.seenAs(p, a, s.gatewayAddresses()))
		}
		return errors.Join(errs...)
	})
}

func (s *scene) asItself(p *node.Pod, to ...netip.Addr) {
	s.t.Helper()
	s.until(fmt.Sprintf("pod %s as itself to %v", p.Name, to), func() error {
		var errs []error
		for _, a := range to {
			errs = append(errs, s.seenAs(p, a, p.Addrs))
		}
		return errors.Join(errs...)
	})
}

func (s *scene) gatewayAddresses() (addrs []netip.Addr) {
	e := &v1alpha1.Egress{}
	if err := s.lab.Kube.Client.Get(s.ctx(), s.key, e); err != nil {
		return nil
	}
	for _, g := range e.Status.Gateways {
		for _, text := range g.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// label sets labels of a pod or a namespace; an empty value takes one away.
func (s *scene) label(o client.Object, key, value string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if value == "" {
		body = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	}
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), o, client.RawPatch(types.MergePatchType, []byte(body))))
}

// annotate names Egresses in a running pod's annotation; none takes it away.
func (s *scene) annotate(p *node.Pod, names string) {
	s.t.Helper()
	key := v1alpha1.AnnotationEgressPrefix + s.key.Namespace
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, names)
	if names == "" {
		body = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, key)
	}
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), podOf(p), client.RawPatch(types.MergePatchType, []byte(body))))
}

func podOf(p *node.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.ObjectName}}
}

func namespaceOf(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// tunnelled is a packet of Foo over UDP that leaves a pod.
type tunnelled struct {
	to   netip.Addr
	from uint16 // source port
}

// tunnels listens at a pod's interface while it talks to a host outside by so many connections,
// and returns the tunnel packets that left.
func (s *scene) tunnels(p *node.Pod, to netip.Addr, connections int) (map[tunnelled]int, error) {
	var fd int
	err := ns.Do(p.Netns(), func() (err error) {
		all := uint16(unix.ETH_P_ALL)
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in pod %s: %w", p.Name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for range connections {
		if _, err := ask(s.ctx(), p, "tcp", to); err != nil {
			return nil, err
		}
	}
	seen := map[tunnelled]int{}
	packet := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, packet, 0)
		if errors.Is(err, unix.EAGAIN) {
			return seen, nil
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			if of, ok := outer(packet[:n]); ok {
				seen[of]++
			}
		}
	}
}

// outer reads the outer headers of a tunnel packet.
func outer(b []byte) (of tunnelled, ok bool) {
	var udp []byte
	switch {
	case len(b) >= 28 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
		of.to, udp = netip.AddrFrom4([4]byte(b[16:20])), b[int(b[0]&15)*4:]
	case len(b) >= 48 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		of.to, udp = netip.AddrFrom16([16]byte(b[24:40])), b[40:]
	}
	if len(udp) < 8 || binary.BigEndian.Uint16(udp[2:]) != fouPort {
		return of, false
	}
	of.from = binary.BigEndian.Uint16(udp)
	return of, true
}

// ports and ends are what tunnel packets had.
func ports(of map[tunnelled]int) []uint16 {
	all := map[uint16]bool{}
	for p := range of {
		all[p.from] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func ends(of map[tunnelled]int) []netip.Addr {
	all := map[netip.Addr]bool{}
	for p := range of {
		all[p.to] = true
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}
