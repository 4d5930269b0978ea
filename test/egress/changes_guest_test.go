//go:build guest && e2e

package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestEgressChangesUnderRunningPods changes an Egress and its clients while pods run, and looks at
// the traffic of these pods, which never restart. The soak changes every field of Egresses.
func TestEgressChangesUnderRunningPods(t *testing.T) {
	s := &liveEgress{newEgress(t, "live", selects)}
	harness.OK(t, s.lab.Kube.CreateNamespace(s.ctx(), s.selected(), map[string]string{v1alpha1.AnnotationEgressSelectableFrom: s.key.Namespace}))
	named := s.client(s.lab.Nodes()[0], "cart")
	plain := s.add(1, "till", node.PodOptions{Namespace: s.selected()})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		harness.OK(t, s.lab.Nodes()[1].DelPod(ctx, plain.Name))
	})
	s.byGateways(named, outside...)
	s.asItself(plain, outside...)
	for _, step := range []struct {
		name string
		run  func(*liveEgress, *node.Pod, *node.Pod)
	}{
		{"Destinations", changeDestinations},
		{"Gateways", scaleGateways},
		{"LabelsAndAnnotations", changeClients},
		{"AllowedNamespaces", takePermission},
		{"BadPod", breakPod},
		{"Egress", makeEgressAnew},
		{"NothingStays", deleteEgress},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(s.in(t), named, plain) }) {
			return
		}
	}
}

func changeDestinations(s *liveEgress, named, _ *node.Pod) {
	four, six := site.OutsideHost.String()+"/32", site.OutsideHost6.String()+"/128"
	s.edit(func(e *v1alpha1.EgressSpec) { e.Destinations = []string{four} })
	s.asItself(named, site.OutsideHost6)
	s.byGateways(named, site.OutsideHost)
	s.edit(func(e *v1alpha1.EgressSpec) { e.Destinations = []string{six} })
	s.asItself(named, site.OutsideHost)
	s.byGateways(named, site.OutsideHost6)
	s.edit(func(e *v1alpha1.EgressSpec) { e.Destinations = []string{"0.0.0.0/0", "::/0"} })
	s.byGateways(named, outside...)
	s.edit(func(e *v1alpha1.EgressSpec) { e.Destinations = []string{four, six} })
	s.byGateways(named, outside...)
}

func scaleGateways(s *liveEgress, named, _ *node.Pod) {
	for _, n := range []int32{3, 1, 2} {
		s.edit(func(e *v1alpha1.EgressSpec) { e.Replicas = &n })
		s.gateways(int(n))
		s.byGateways(named, outside...)
	}
}

// changeClients makes a pod a client and back, by its namespace's label, its own, and its annotation.
func changeClients(s *liveEgress, _, plain *node.Pod) {
	namespace := namespaceOf(s.selected())
	s.label(namespace, "team", "live")
	s.label(podOf(plain), "out", "gateway")
	s.byGateways(plain, outside...)
	s.label(podOf(plain), "out", "")
	s.asItself(plain, outside...)
	s.label(podOf(plain), "out", "gateway")
	s.byGateways(plain, outside...)
	s.consents("another")
	s.asItself(plain, outside...)
	s.consents(s.key.Namespace)
	s.byGateways(plain, outside...)
	s.label(namespace, "team", "")
	s.asItself(plain, outside...)
	// It may not name the Egress before the Egress allows its namespace.
	s.annotate(plain, s.key.Name)
	s.refused(plain, v1alpha1.EgressNotAllowed)
	s.asItself(plain, outside...)
	s.edit(func(e *v1alpha1.EgressSpec) {
		e.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{s.clients(), s.selected()}}
	})
	s.byGateways(plain, outside...)
	s.annotate(plain, "")
	s.asItself(plain, outside...)
}

// refused waits until a pod's EgressClient has the reason why it may not use an Egress.
func (s *liveEgress) refused(p *node.Pod, reason string) {
	s.t.Helper()
	s.until("pod "+p.Name+" is refused", func() error {
		c := &v1alpha1.EgressClient{}
		if err := s.lab.Kube.Client.Get(s.ctx(), client.ObjectKey{Namespace: p.Namespace, Name: p.ObjectName}, c); err != nil {
			return err
		}
		if len(c.Spec.Refused) != 1 || c.Spec.Refused[0].Reason != reason {
			return fmt.Errorf("it is refused %+v", c.Spec.Refused)
		}
		return nil
	})
}

func takePermission(s *liveEgress, named, _ *node.Pod) {
	s.edit(func(e *v1alpha1.EgressSpec) { e.AllowedNamespaces = nil })
	s.refused(named, v1alpha1.EgressNotAllowed)
	s.asItself(named, outside...)
	s.until("nothing of egress in pod "+named.Name, func() error { return nothingIn(named) })
	s.edit(func(e *v1alpha1.EgressSpec) {
		e.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{s.clients()}}
	})
	s.byGateways(named, outside...)
}

// breakPod has one pod that cannot be changed, as another link has the name of its tunnel, and changes
// the Egress of all.
func breakPod(s *liveEgress, named, _ *node.Pod) {
	bad := s.add(0, "bad", s.named())
	s.byGateways(bad, outside...)
	harness.OK(s.t, ns.Netlink(bad.Netns(), func(h *netlink.Handle) error {
		if err := ns.DeleteLink(h, tunnel.Link4); err != nil {
			return err
		}
		return h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: tunnel.Link4}})
	}))
	s.edit(func(e *v1alpha1.EgressSpec) { e.Destinations = []string{site.OutsideHost.String() + "/32"} })
	s.asItself(named, site.OutsideHost6)
	other := s.add(0, "other", s.named())
	s.byGateways(other, site.OutsideHost)
	s.edit(func(e *v1alpha1.EgressSpec) {
		e.Destinations = []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}
	})
	s.byGateways(named, outside...)
	s.byGateways(other, outside...)
	// Once the link is gone, the pod is changed too.
	harness.OK(s.t, ns.Netlink(bad.Netns(), func(h *netlink.Handle) error { return ns.DeleteLink(h, tunnel.Link4) }))
	s.byGateways(bad, outside...)
	for _, name := range []string{"bad", "other"} {
		harness.OK(s.t, s.lab.Nodes()[0].DelPod(s.ctx(), name))
	}
}

// makeEgressAnew deletes the Egress and creates it with the same name.
func makeEgressAnew(s *liveEgress, named, _ *node.Pod) {
	before := s.read()
	harness.OK(s.t, s.lab.Kube.Client.Delete(s.ctx(), before))
	again := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}, Spec: before.Spec}
	s.until("the Egress is made again", func() error {
		err := s.lab.Kube.Client.Create(s.ctx(), again.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if s.read().UID == before.UID {
		s.t.Fatal("it is the Egress of before")
	}
	s.gateways(2)
	s.byGateways(named, outside...)
}

// deleteEgress deletes the Egress, of which nothing may stay anywhere.
func deleteEgress(s *liveEgress, named, plain *node.Pod) {
	s.label(namespaceOf(s.selected()), "team", "live")
	s.label(podOf(plain), "out", "gateway")
	s.byGateways(plain, outside...)
	harness.OK(s.t, s.lab.Kube.Client.Delete(s.ctx(), s.read()))
	for i, p := range []*node.Pod{named, plain} {
		s.asItself(p, outside...)
		s.until("nothing of egress in pod "+p.Name, func() error { return nothingIn(p) })
		s.until("nothing of it in the record of pod "+p.Name, func() error { return s.notRecorded(i, p) })
	}
	s.until("no object of it is there", s.noObjects)
}

// notRecorded expects no egress in a pod's record.
func (s *liveEgress) notRecorded(at int, p *node.Pod) error {
	text, err := s.lab.Nodes()[at].Get(s.ctx(), node.IntrospectionURL+"/pod?namespace="+p.Namespace+"&name="+p.ObjectName)
	if err != nil {
		return err
	}
	var pod introspect.Pod
	if err := json.Unmarshal([]byte(text), &pod); err != nil {
		return err
	}
	if len(pod.Attachments) != 1 || pod.Attachments[0].Egress != nil {
		return fmt.Errorf("pod %s is recorded with %s", p.Name, text)
	}
	return nil
}

// nothingIn expects nothing of egress in a pod's namespace: links, rules, routes, nftables tables, and
// ports of Foo-over-UDP.
func nothingIn(p *node.Pod) error {
	return ns.Do(p.Netns(), func() error {
		var errs []error
		for what, command := range map[string][]string{
			"links": {"ip", "-o", "link", "show", "type", "ipip"}, "links of IPv6": {"ip", "-o", "link", "show", "type", "ip6tnl"},
			"tables of nftables": {"nft", "list", "tables"}, "ports of FoU": {"ip", "fou", "show"}, "ports of FoU6": {"ip", "-6", "fou", "show"},
			"next hops": {"ip", "nexthop", "show"},
		} {
			out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
			if err != nil {
				errs = append(errs, fmt.Errorf("%v: %w: %s", command, err, out))
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "berth-egress") || strings.Contains(line, fmt.Sprint("port ", fouPort)) || what == "next hops" {
					errs = append(errs, fmt.Errorf("%s: %s", what, strings.TrimSpace(line)))
				}
			}
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := netlink.RuleList(family)
			errs = append(errs, err)
			for _, r := range rules {
				if r.Priority != 0 && r.Priority < 32766 {
					errs = append(errs, fmt.Errorf("rule %s", r))
				}
			}
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
			errs = append(errs, err)
			for _, r := range routes {
				if r.Table != 254 && r.Table != 255 {
					errs = append(errs, fmt.Errorf("route %s", r))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// noObjects expects no object of the Egress.
func (s *liveEgress) noObjects() error {
	var errs []error
	kube := s.lab.Kube.Client
	clients, slices := &v1alpha1.EgressClientList{}, &v1alpha1.EgressClientSliceList{}
	errs = append(errs, kube.List(s.ctx(), slices))
	for _, o := range slices.Items {
		errs = append(errs, fmt.Errorf("slice %s/%s", o.Namespace, o.Name))
	}
	errs = append(errs, kube.List(s.ctx(), clients))
	for _, o := range clients.Items {
		if len(o.Spec.Egresses) > 0 {
			errs = append(errs, fmt.Errorf("EgressClient %s/%s: %+v", o.Namespace, o.Name, o.Spec))
		}
	}
	if left := s.lab.Gateways(s.key); len(left) > 0 {
		errs = append(errs, fmt.Errorf("%d gateways", len(left)))
	}
	return errors.Join(errs...)
}

// TestFirstConnections has a few pods connect as soon as they have their network, all at the same
// time. None fails, and no gateway drops a packet of a pod that it does not know yet.
func TestFirstConnections(t *testing.T) { firstConnections(t, "first", 6) }

// runtimesAtOnce is how many pods are made at a time, as an emulated processor runs few processes.
const runtimesAtOnce = 8

func firstConnections(t *testing.T, name string, pods int) {
	s := &liveEgress{newEgress(t, name)}
	gateways := s.gatewayAddresses()
	strangers := s.strangers()

	var mu sync.Mutex // guards took
	var took, adds []time.Duration
	began := time.Now()
	turns := make(chan struct{}, runtimesAtOnce)
	err := harness.AtOnce(pods, func(i int) error {
		turns <- struct{}{}
		defer func() { <-turns }()
		at := s.lab.Nodes()[i%len(s.lab.Nodes())]
		added := time.Now()
		p, err := at.AddPod(s.ctx(), fmt.Sprintf("first-%d", i), s.named())
		if err != nil {
			return err
		}
		connects := time.Now()
		to := outside[i/len(s.lab.Nodes())%len(outside)]
		ctx, cancel := context.WithTimeout(s.ctx(), time.Minute)
		defer cancel()
		r, err := echo.Ask(ctx, p.Netns(), "tcp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "first")
		if err != nil {
			return fmt.Errorf("the first connection of pod %s: %w", p.Name, err)
		}
		if !slices.Contains(gateways, r.You) {
			return fmt.Errorf("the first connection of pod %s is seen as %s, want one of %v", p.Name, r.You, gateways)
		}
		mu.Lock()
		defer mu.Unlock()
		took, adds = append(took, time.Since(connects)), append(adds, connects.Sub(added))
		return nil
	})
	if len(took) == 0 {
		t.Fatal(err)
	}
	slices.Sort(took)
	slices.Sort(adds)
	t.Logf("%d pods in %.1f s: ADD median %.2f s, slowest %.2f s; first connection median %.0f ms, slowest %.0f ms",
		pods, time.Since(began).Seconds(), adds[pods/2].Seconds(), adds[pods-1].Seconds(), took[pods/2].Seconds()*1000, took[pods-1].Seconds()*1000)
	harness.OK(t, err)
	if n := s.strangers() - strangers; n != 0 {
		t.Errorf("gateways dropped %v packets as they were of no client", n)
	}
	if n := s.setUp(); n < float64(pods) {
		t.Errorf("berthds tell scrapers of %v clients that are set up, want %d at least", n, pods)
	}
	harness.OK(t, harness.AtOnce(pods, func(i int) error {
		return s.lab.Nodes()[i%len(s.lab.Nodes())].DelPod(s.ctx(), fmt.Sprintf("first-%d", i))
	}))
}

// setUp is the number of clients in the metrics of all berthds.
func (s *egress) setUp() (n float64) {
	s.t.Helper()
	for _, at := range s.lab.Nodes() {
		text, err := at.Get(s.t.Context(), node.MetricsURL)
		harness.OK(s.t, err)
		n += sample(s.t, text, `berth_egress_clients{state="set-up"}`)
	}
	return n
}

// strangers is how many packets the gateways dropped as they were of no client.
func (s *egress) strangers() (n float64) {
	s.t.Helper()
	for _, g := range s.lab.Gateways(s.key) {
		text := s.metrics(g)
		for _, family := range []string{"ipv4", "ipv6"} {
			n += sample(s.t, text, fmt.Sprintf(`berth_egress_dropped_packets_total{family=%q,reason="not-a-client"}`, family))
		}
	}
	return n
}

// TestManyFirstConnections is TestFirstConnections with 100 pods.
func TestManyFirstConnections(t *testing.T) { firstConnections(t, "many-first", 100) }
