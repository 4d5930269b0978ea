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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// The cast of the story of egress.
const (
	gatewayNamespace = "egress"
	internetEgress   = "internet"
)

// egressClients are the namespaces of the clients.
var egressClients = []string{"shop", "bank"}

// egressProofs are those of a lab with egress.
var egressProofs = []proof{
	{inPool, "an Egress has two gateways, with addresses of their own pool", egressReady},
	{inPool, "clients of two namespaces are seen as gateways, others as themselves", clientsAndOthers},
	{inPool, "what is no destination keeps its way; destinations change live", editDestinations},
	{inPool, "three gateways share a client's connections", scaleGateways},
	{inPool, "a pod that may not use the Egress does not start, and is told why", refusedClient},
	{inPool, "berth-egress killed with -9 under traffic: no connection ends", killGatewayProgram},
	{inPool, "a gateway's pod is deleted: its connections end in peace, new ones go on", deleteGateway},
	{inPool, "the Egress is deleted: pods go their own way, and nothing stays", deleteEgress},
}

// internetKey is the name of the story's Egress.
var internetKey = types.NamespacedName{Namespace: gatewayNamespace, Name: internetEgress}

// editEgress changes it as a person does with kubectl edit.
func (s *stage) editEgress(ctx context.Context, change func(*v1alpha1.Egress)) error {
	return s.lab.Kube.EditEgress(ctx, internetKey, change)
}

// gateways waits until the Egress has so many that are ready and none that ends, and returns their
// addresses.
func (s *stage) gateways(ctx context.Context, n int) (map[netip.Addr]string, error) {
	return s.lab.Kube.WaitGateways(ctx, internetKey, n)
}

func egressReady(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.Kube.CreateNamespace(ctx, gatewayNamespace, map[string]string{"berth.dev/pool": lab.GatewayPool}); err != nil {
		return "", err
	}
	consent := map[string]map[string]string{"bank": {v1alpha1.AnnotationEgressSelectableFrom: gatewayNamespace}}
	for _, name := range append([]string{"stranger"}, egressClients...) {
		if err := s.lab.Kube.CreateNamespace(ctx, name, consent[name]); err != nil {
			return "", err
		}
	}
	two, outside := int32(2), site.OutsideHost.String()+"/32"
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: internetKey.Namespace, Name: internetKey.Name},
		Spec: v1alpha1.EgressSpec{
			Destinations: []string{outside}, Replicas: &two, SessionAffinity: corev1.ServiceAffinityNone,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"shop"}},
			Clients: &v1alpha1.EgressClientSelector{
				NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{corev1.LabelMetadataName: "bank"}},
				PodSelector:       &v1alpha1.LabelSelector{},
			},
		},
	}
	began := time.Now()
	if err := s.lab.Kube.Client.Create(ctx, e); err != nil {
		return "", fmt.Errorf("create Egress %s: %w", internetKey, err)
	}
	addrs, err := s.gateways(ctx, 2)
	if err != nil {
		return "", err
	}
	for a, name := range addrs {
		if !netip.MustParsePrefix(lab.GatewayNetworks.IPv4).Contains(a) && !netip.MustParsePrefix(lab.GatewayNetworks.IPv6).Contains(a) {
			return "", fmt.Errorf("gateway %s has %s, which is not of pool %s", name, a, lab.GatewayPool)
		}
	}
	return fmt.Sprintf("%s, for %s; ready after %s", tellAddresses(slices.Collect(maps.Keys(addrs))), outside, ms(time.Since(began))), nil
}

func tellAddresses(addrs []netip.Addr) string {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var told []string
	for _, a := range addrs {
		told = append(told, a.String())
	}
	return strings.Join(told, ", ")
}

// client is the pod of the story in a namespace.
func (s *stage) client(namespace string) (*node.Pod, error) {
	for _, n := range s.nodes {
		for _, p := range n.Pods() {
			if p.Namespace == namespace && p.Object == nil {
				return p, nil
			}
		}
	}
	return nil, fmt.Errorf("no pod in namespace %s", namespace)
}

// seenAs asks the outside by which address it sees a pod's new connections.
func seenAs(ctx context.Context, p *node.Pod, network string, to netip.Addr) (netip.Addr, error) {
	one, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	r, err := echo.Ask(one, p.Netns(), network, port(to), netip.Addr{}, "hello from "+p.Name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("pod %s/%s to %s by %s: %w", p.Namespace, p.Name, to, network, err)
	}
	return r.You, nil
}

// seen waits until the outside sees a pod by one of some addresses; none: by its own.
func seen(ctx context.Context, p *node.Pod, to netip.Addr, by map[netip.Addr]string) error {
	return until(ctx, fmt.Sprintf("what %s sees of pod %s/%s", to, p.Namespace, p.Name), func() error {
		for _, network := range []string{"tcp", "udp"} {
			as, err := seenAs(ctx, p, network, to)
			if err != nil {
				return err
			}
			if by == nil && !slices.Contains(p.Addrs, as) {
				return fmt.Errorf("it is seen as %s by %s, want its own address", as, network)
			}
			if _, ok := by[as]; by != nil && !ok {
				return fmt.Errorf("it is seen as %s by %s, want a gateway's address", as, network)
			}
		}
		return nil
	})
}

func clientsAndOthers(ctx context.Context, s *stage) (string, error) {
	addrs, err := s.gateways(ctx, 2)
	if err != nil {
		return "", err
	}
	named := node.PodOptions{Namespace: "shop", Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + gatewayNamespace: internetEgress}}
	shop, err := s.nodes[0].AddPod(ctx, "cart", named)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := seenAs(ctx, shop, "tcp", site.OutsideHost); err != nil {
		return "", fmt.Errorf("first connection: %w", err)
	}
	first := time.Since(began)
	bank, err := s.nodes[1].AddPod(ctx, "till", node.PodOptions{Namespace: "bank"})
	if err != nil {
		return "", err
	}
	other, err := s.nodes[0].AddPod(ctx, "other", node.PodOptions{Namespace: "stranger"})
	if err != nil {
		return "", err
	}
	err = errors.Join(seen(ctx, shop, site.OutsideHost, addrs), seen(ctx, bank, site.OutsideHost, addrs), seen(ctx, other, site.OutsideHost, nil))
	return fmt.Sprintf("by annotation and by selector; the first connection, begun at once, took %s", ms(first)), err
}

func editDestinations(ctx context.Context, s *stage) (string, error) {
	addrs, err := s.gateways(ctx, 2)
	if err != nil {
		return "", err
	}
	for _, namespace := range egressClients {
		p, err := s.client(namespace)
		if err != nil {
			return "", err
		}
		if err := seen(ctx, p, site.OutsideHost6, nil); err != nil {
			return "", fmt.Errorf("before: %w", err)
		}
	}
	began := time.Now()
	if err := s.editEgress(ctx, func(e *v1alpha1.Egress) {
		e.Spec.Destinations = append(e.Spec.Destinations, site.OutsideHost6.String()+"/128")
	}); err != nil {
		return "", err
	}
	for _, namespace := range egressClients {
		p, err := s.client(namespace)
		if err != nil {
			return "", err
		}
		if err := seen(ctx, p, site.OutsideHost6, addrs); err != nil {
			return "", fmt.Errorf("after: %w", err)
		}
	}
	return fmt.Sprintf("%s was reached as itself; %s after the edit by gateways, in pods that run", site.OutsideHost6, ms(time.Since(began))), nil
}

func scaleGateways(ctx context.Context, s *stage) (string, error) {
	began := time.Now()
	three := int32(3)
	if err := s.editEgress(ctx, func(e *v1alpha1.Egress) { e.Spec.Replicas = &three }); err != nil {
		return "", err
	}
	addrs, err := s.gateways(ctx, 3)
	if err != nil {
		return "", err
	}
	ready := time.Since(began)
	p, err := s.client("shop")
	if err != nil {
		return "", err
	}
	used := map[string]int{}
	for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
		clear(used)
		err := until(ctx, "all three gateways to be used", func() error {
			for range 10 {
				as, err := seenAs(ctx, p, "tcp", to)
				if err != nil {
					return err
				}
				used[addrs[as]]++
			}
			if used[""] > 0 || len(used) < 3 {
				return fmt.Errorf("used are %v", used)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("the third was ready after %s; all are used, with IPv4 and IPv6", ms(ready)), nil
}

func refusedClient(ctx context.Context, s *stage) (string, error) {
	options := node.PodOptions{Namespace: "stranger", Once: true, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + gatewayNamespace: internetEgress}}
	_, err := s.nodes[1].AddPod(ctx, "nosy", options)
	if err == nil {
		return "", errors.New("it started")
	}
	for _, want := range []string{internetEgress, "stranger"} {
		if !strings.Contains(err.Error(), want) {
			return "", fmt.Errorf("the error of its ADD does not say %s: %w", want, err)
		}
	}
	text := err.Error()
	if i := strings.LastIndex(text, "failed ("); i >= 0 {
		text = text[i:]
	}
	return fmt.Sprintf("%.160q", text), nil
}

// talk has the clients talk to the outside, over both families, until end is called.
func (s *stage) talk(ctx context.Context, networks ...string) (*traffic, error) {
	t := &traffic{}
	ctx, t.stop = context.WithCancel(ctx)
	for _, namespace := range egressClients {
		p, err := s.client(namespace)
		if err != nil {
			return t, err
		}
		for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
			for _, network := range networks {
				if err := t.converse(ctx, p.Netns(), network, to); err != nil {
					return t, err
				}
			}
		}
	}
	return t, nil
}

// killGatewayProgram is about connections: a datagram that comes while a process takes over may be
// lost, and nobody sends it again.
func killGatewayProgram(ctx context.Context, s *stage) (string, error) {
	t, err := s.talk(ctx, "tcp")
	defer t.stop()
	if err != nil {
		return "", err
	}
	if err := t.flow(ctx); err != nil {
		return "", errors.Join(err, t.end())
	}
	all := s.lab.Gateways(internetKey)
	for _, g := range all {
		if err := g.Kill(); err != nil {
			return "", err
		}
	}
	if err := t.flow(ctx); err != nil {
		return "", errors.Join(err, t.end())
	}
	if _, err := s.gateways(ctx, 3); err != nil {
		return "", err
	}
	if err := t.flow(ctx); err != nil {
		return "", errors.Join(err, t.end())
	}
	if err := t.end(); err != nil {
		return "", err
	}
	return fmt.Sprintf("all %d killed and started again, %d conversations, %d answers", len(all), t.talks, t.answered.Load()), nil
}

func deleteGateway(ctx context.Context, s *stage) (string, error) {
	before, err := s.gateways(ctx, 3)
	if err != nil {
		return "", err
	}
	t, err := s.talk(ctx, "tcp", "udp")
	defer t.stop()
	if err != nil {
		return "", err
	}
	p, err := s.client("shop")
	if err != nil {
		return "", err
	}
	one := s.lab.Gateways(internetKey)[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: internetKey.Namespace, Name: one.Name}}
	if err := s.lab.Kube.Client.Delete(ctx, pod); err != nil {
		return "", fmt.Errorf("delete pod %s: %w", one.Name, err)
	}
	var worst time.Duration
	asked := 0
	// Until clients have left it, and a while longer.
	err = until(ctx, "clients to leave the gateway", func() error {
		left := true
		for range 10 {
			began := time.Now()
			as, err := seenAs(ctx, p, "tcp", site.OutsideHost)
			if err != nil {
				return err
			}
			asked++
			worst = max(worst, time.Since(began))
			left = left && before[as] != one.Name
		}
		if !left {
			return errors.New("new connections go there")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := t.end(); err != nil {
		return "", fmt.Errorf("a conversation by a gateway that ends: %w", err)
	}
	if _, err := s.gateways(ctx, 3); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d conversations lost nothing; %d new connections, the slowest %s; a new gateway took its place", t.talks, asked, ms(worst)), nil
}

func deleteEgress(ctx context.Context, s *stage) (string, error) {
	e, err := s.lab.Kube.Egress(ctx, internetKey)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.lab.Kube.Client.Delete(ctx, e); err != nil {
		return "", fmt.Errorf("delete Egress %s: %w", internetKey, err)
	}
	for _, namespace := range egressClients {
		p, err := s.client(namespace)
		if err != nil {
			return "", err
		}
		if err := errors.Join(seen(ctx, p, site.OutsideHost, nil), seen(ctx, p, site.OutsideHost6, nil)); err != nil {
			return "", err
		}
		if err := until(ctx, "tunnels of pod "+p.Name, func() error { return noTunnels(p) }); err != nil {
			return "", err
		}
	}
	took := time.Since(began)
	return fmt.Sprintf("after %s", ms(took)), poll.Until(ctx, func() error {
		if left := s.lab.Gateways(internetKey); len(left) > 0 {
			return fmt.Errorf("%d gateways run", len(left))
		}
		return nil
	})
}
