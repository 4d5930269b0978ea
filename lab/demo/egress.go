package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

// The names of the egress demo.
const (
	gatewayNamespace = "egress"
	internetEgress   = "internet"
)

// egressClients are the namespaces of the clients.
var egressClients = []string{"shop", "bank"}

// egressProofs are the proofs of a lab with egress.
var egressProofs = []proof{
	in(inPool, "an Egress has two gateways, with addresses of their own pool", egressReady),
	in(inPool, "clients of two namespaces are seen as gateways, others as themselves", clientsAndOthers),
	in(inPool, "other destinations are unaffected; destinations change live", editDestinations),
	in(inPool, "three gateways share a client's connections", scaleGateways),
	in(inPool, "a pod that may not use the Egress does not start; its error says why", refusedClient),
	in(inPool, "berth-egress killed with -9 under traffic: no connection ends", killGatewayProgram),
	in(inPool, "a gateway's pod is deleted: its connections finish, new ones use others", deleteGateway),
	in(inPool, "the Egress is deleted: pods are seen as themselves, nothing is left", deleteEgress),
}

// internetKey is the name of the demo's Egress.
var internetKey = types.NamespacedName{Namespace: gatewayNamespace, Name: internetEgress}

// egress is the lab of the egress demo.
type egress struct {
	lab   *lab.Lab
	nodes []*node.Node
}

// edit changes the Egress, as kubectl edit does.
func (s *egress) edit(ctx context.Context, change func(*v1alpha1.Egress)) {
	check(s.lab.Kube.EditEgress(ctx, internetKey, change))
}

// gateways waits until the Egress has n ready gateways and none that terminates, and returns their
// addresses and names.
func (s *egress) gateways(ctx context.Context, n int) map[netip.Addr]string {
	return must(s.lab.Kube.WaitGateways(ctx, internetKey, n))
}

func egressReady(ctx context.Context, s *stage) string {
	check(s.lab.Kube.CreateNamespace(ctx, gatewayNamespace, map[string]string{v1alpha1.AnnotationPool: lab.GatewayPool}))
	consent := map[string]map[string]string{"bank": {v1alpha1.AnnotationEgressSelectableFrom: gatewayNamespace}}
	for _, name := range append([]string{"stranger"}, egressClients...) {
		check(s.lab.Kube.CreateNamespace(ctx, name, consent[name]))
	}
	outside := site.OutsideHost.String() + "/32"
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: internetKey.Namespace, Name: internetKey.Name},
		Spec: v1alpha1.EgressSpec{
			Destinations: []string{outside}, Replicas: new(int32(2)), SessionAffinity: corev1.ServiceAffinityNone,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"shop"}},
			Clients: &v1alpha1.EgressClientSelector{
				NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{corev1.LabelMetadataName: "bank"}},
				PodSelector:       &v1alpha1.LabelSelector{},
			},
		},
	}
	began := time.Now()
	checkf(s.lab.Kube.Client.Create(ctx, e), "create Egress %s", internetKey)
	addrs := s.egress.gateways(ctx, 2)
	for a, name := range addrs {
		if !netip.MustParsePrefix(lab.GatewayNetworks.IPv4).Contains(a) && !netip.MustParsePrefix(lab.GatewayNetworks.IPv6).Contains(a) {
			fail("gateway %s has %s, which is not of pool %s", name, a, lab.GatewayPool)
		}
	}
	var list []string
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		list = append(list, a.String())
	}
	return fmt.Sprintf("%s, for %s; ready after %s", strings.Join(list, ", "), outside, ms(time.Since(began)))
}

// client returns the client pod in a namespace.
func (s *egress) client(namespace string) *node.Pod {
	for _, n := range s.nodes {
		for _, p := range n.Pods() {
			if p.Namespace == namespace && p.Object == nil {
				return p
			}
		}
	}
	fail("no pod in namespace %s", namespace)
	return nil
}

// seenAs returns the source of a pod's new connection as a host outside sees it.
func seenAs(ctx context.Context, p *node.Pod, network string, to netip.Addr) netip.Addr {
	one, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	r, err := echo.Ask(one, p.Netns(), network, port(to), netip.Addr{}, "hello from "+p.Name)
	checkf(err, "pod %s/%s to %s by %s", p.Namespace, p.Name, to, network)
	return r.You
}

// seen waits until a host outside sees a pod's connections from one of the addresses, or from its own if there are none.
func seen(ctx context.Context, p *node.Pod, to netip.Addr, by map[netip.Addr]string) {
	await(ctx, fmt.Sprintf("how %s sees pod %s/%s", to, p.Namespace, p.Name), func() {
		for _, network := range []string{"tcp", "udp"} {
			as := seenAs(ctx, p, network, to)
			if by == nil && !slices.Contains(p.Addrs, as) {
				fail("it is seen as %s by %s, want its own address", as, network)
			}
			if _, ok := by[as]; by != nil && !ok {
				fail("it is seen as %s by %s, want a gateway's address", as, network)
			}
		}
	})
}

func clientsAndOthers(ctx context.Context, s *stage) string {
	addrs := s.egress.gateways(ctx, 2)
	named := node.PodOptions{Namespace: "shop", Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + gatewayNamespace: internetEgress}}
	shop := must(s.nodes[0].AddPod(ctx, "cart", named))
	began := time.Now()
	checkf(attempt(func() { seenAs(ctx, shop, "tcp", site.OutsideHost) }), "first connection")
	first := time.Since(began)
	bank := must(s.nodes[1].AddPod(ctx, "till", node.PodOptions{Namespace: "bank"}))
	other := must(s.nodes[0].AddPod(ctx, "other", node.PodOptions{Namespace: "stranger"}))
	seen(ctx, shop, site.OutsideHost, addrs)
	seen(ctx, bank, site.OutsideHost, addrs)
	seen(ctx, other, site.OutsideHost, nil)
	return fmt.Sprintf("by annotation and by selector; the first connection, opened immediately, took %s", ms(first))
}

func editDestinations(ctx context.Context, s *stage) string {
	addrs := s.egress.gateways(ctx, 2)
	for _, namespace := range egressClients {
		checkf(attempt(func() { seen(ctx, s.egress.client(namespace), site.OutsideHost6, nil) }), "before")
	}
	began := time.Now()
	s.egress.edit(ctx, func(e *v1alpha1.Egress) {
		e.Spec.Destinations = append(e.Spec.Destinations, site.OutsideHost6.String()+"/128")
	})
	for _, namespace := range egressClients {
		checkf(attempt(func() { seen(ctx, s.egress.client(namespace), site.OutsideHost6, addrs) }), "after")
	}
	return fmt.Sprintf("%s saw the pods themselves; gateways %s after the edit, in running pods", site.OutsideHost6, ms(time.Since(began)))
}

func scaleGateways(ctx context.Context, s *stage) string {
	began := time.Now()
	s.egress.edit(ctx, func(e *v1alpha1.Egress) { e.Spec.Replicas = new(int32(3)) })
	addrs := s.egress.gateways(ctx, 3)
	ready, p := time.Since(began), s.egress.client("shop")
	for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
		used := map[string]int{}
		await(ctx, "all three gateways to be used", func() {
			for range 10 {
				used[addrs[seenAs(ctx, p, "tcp", to)]]++
			}
			if used[""] > 0 || len(used) < 3 {
				fail("used gateways: %v", used)
			}
		})
	}
	return fmt.Sprintf("the third was ready after %s; all are used, with IPv4 and IPv6", ms(ready))
}

func refusedClient(ctx context.Context, s *stage) string {
	options := node.PodOptions{Namespace: "stranger", Once: true, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + gatewayNamespace: internetEgress}}
	_, err := s.nodes[1].AddPod(ctx, "nosy", options)
	if err == nil {
		fail("the pod started")
	}
	text := err.Error()
	for _, want := range []string{internetEgress, "stranger"} {
		if !strings.Contains(text, want) {
			fail("the error of its ADD does not contain %s: %w", want, err)
		}
	}
	return fmt.Sprintf("%.160q", text[max(0, strings.LastIndex(text, "failed (")):])
}

// fromClients starts conversations of the clients with the hosts outside, over both families.
func (s *egress) fromClients(ctx context.Context, t *traffic, networks ...string) {
	for _, namespace := range egressClients {
		for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
			for _, network := range networks {
				t.converse(ctx, s.client(namespace).Netns(), network, to)
			}
		}
	}
}

// killGatewayProgram uses TCP only: a datagram that arrives during the restart is lost.
func killGatewayProgram(ctx context.Context, s *stage) string {
	all := s.lab.Gateways(internetKey)
	_, t := underTraffic(ctx, func(ctx context.Context, t *traffic) string {
		s.egress.fromClients(ctx, t, "tcp")
		t.flow(ctx)
		for _, g := range all {
			check(g.Kill())
		}
		t.flow(ctx)
		s.egress.gateways(ctx, 3)
		t.flow(ctx)
		return ""
	})
	return fmt.Sprintf("all %d killed and restarted, %d conversations, %d replies", len(all), t.talks, t.answered.Load())
}

func deleteGateway(ctx context.Context, s *stage) string {
	before := s.egress.gateways(ctx, 3)
	p, one := s.egress.client("shop"), s.lab.Gateways(internetKey)[0]
	asked, worst := 0, time.Duration(0)
	_, t := underTraffic(ctx, func(ctx context.Context, t *traffic) string {
		s.egress.fromClients(ctx, t, "tcp", "udp")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: internetKey.Namespace, Name: one.Name}}
		checkf(s.lab.Kube.Client.Delete(ctx, pod), "delete pod %s", one.Name)
		// Until clients no longer use it, and for some time after that.
		await(ctx, "clients to leave the gateway", func() {
			left := true
			for range 10 {
				began := time.Now()
				as := seenAs(ctx, p, "tcp", site.OutsideHost)
				asked++
				worst = max(worst, time.Since(began))
				left = left && before[as] != one.Name
			}
			if !left {
				fail("new connections still use it")
			}
		})
		return ""
	})
	s.egress.gateways(ctx, 3)
	return fmt.Sprintf("%d conversations lost nothing; %d new connections, the slowest %s; a new gateway replaced it", t.talks, asked, ms(worst))
}

func deleteEgress(ctx context.Context, s *stage) string {
	e := must(s.lab.Kube.Egress(ctx, internetKey))
	began := time.Now()
	checkf(s.lab.Kube.Client.Delete(ctx, e), "delete Egress %s", internetKey)
	for _, namespace := range egressClients {
		p := s.egress.client(namespace)
		seen(ctx, p, site.OutsideHost, nil)
		seen(ctx, p, site.OutsideHost6, nil)
		await(ctx, "tunnels of pod "+p.Name, func() { check(ns.Netlink(p.Netns(), noTunnels)) })
	}
	took := time.Since(began)
	await(ctx, "gateways", func() {
		if left := s.lab.Gateways(internetKey); len(left) > 0 {
			fail("%d gateways run", len(left))
		}
	})
	return fmt.Sprintf("after %s", ms(took))
}

// noTunnels returns an error if a pod still has a tunnel, or a rule that is not the kernel's own.
func noTunnels(h *netlink.Handle) error {
	var errs []error
	for _, name := range []string{tunnel.Link4, tunnel.Link6} {
		if _, err := h.LinkByName(name); err == nil {
			errs = append(errs, fmt.Errorf("link %s exists", name))
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := h.RuleList(family)
		errs = append(errs, err)
		for _, r := range rules {
			if r.Priority != 0 && r.Priority < 32766 {
				errs = append(errs, fmt.Errorf("rule %s exists", r))
			}
		}
	}
	return errors.Join(errs...)
}
