package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/egressclients"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/poll"
)

// The cluster has 10,000 pods, of which 1,000 use one of ten Egresses, and ten of these clients are
// replaced per second. The baseline has a tenth of the pods, clients, Egresses and replacements per
// second, so its EgressClientSlices have the same size.
const (
	egressNodes                         = 100
	egressPods, egressClients, egresses = 10000, 1000, 10
	egressChanges, egressPerSecond      = 100, 10
	egressRuns                          = 3
)

// egressClientFigures measures the cost of replacing clients of Egresses.
func egressClientFigures(ctx context.Context, b *bench) []Result {
	run := func(divisor int) egressclients.Outcome {
		o := egressclients.Order{
			Pods: egressPods / divisor, Nodes: egressNodes, Clients: egressClients / divisor, Egresses: egresses / divisor,
			Changes: egressChanges, PerSecond: egressPerSecond / divisor,
		}
		out := must.Get(egressclients.Job.Run(ctx, o, b.profile(fmt.Sprintf("egress-clients-%d", o.Pods))))
		say("  %d pods, %d clients: %v per client, %v per other pod, served within %v; %d objects, %.0f B/s; writes %v", o.Pods, o.Clients, out.CPU, out.Idle, out.Known, out.Objects, out.Bytes, out.Writes)
		return out
	}
	s := series{}
	var few, all egressclients.Outcome
	for range egressRuns {
		few, all = run(10), run(1)
		s.add("cpu", millis(all.CPU))
		s.add("cpu of few", millis(few.CPU))
		s.add("idle", millis(all.Idle))
		s.add("idle of few", millis(few.Idle))
		s.add("known", millis(all.Known))
	}
	return []Result{
		s.ratio("egress-client-cpu", "ms", "cpu", "cpu of few"),
		s.ratio("egress-other-pod-cpu", "ms", "idle", "idle of few"),
		measured("egress-client-told", "ms", s["known"]...),
		single("egress-gateway-objects", "objects", float64(all.Objects), float64(all.PodObjects)),
		single("egress-gateway-bytes", "B/s", all.Bytes, few.Bytes),
		single("egress-clients-memory", "KiB/pod", float64(all.Heap)/1024/egressPods, 0),
	}
}

// The largest cluster, in turn with a tenth: all but a few pods, which are replaced by others, are clients.
const (
	largestClients, largestClientNodes = 200_000, 20_000
	clientsPerLargestEgress            = 1000
	largestClientChanges               = 1000
	largestClientsPerSecond            = 100
)

// largestEgressClients measures an operator that finds all pods and no EgressClient in the largest cluster, and the replacement
// of clients there.
func largestEgressClients(ctx context.Context, b *bench) []Result {
	run := func(divisor int) egressclients.Outcome {
		n := largestClients / divisor
		o := egressclients.Order{
			Pods: n + largestClientChanges, Nodes: largestClientNodes / divisor, Clients: n, Egresses: n / clientsPerLargestEgress,
			Changes: largestClientChanges, PerSecond: largestClientsPerSecond / divisor,
		}
		out := must.Get(egressclients.Job.Run(ctx, o, b.profile(fmt.Sprintf("egress-clients-%d", n))))
		say("  %d clients: served after %v with %v of CPU and %d writes; %d MiB, %v per replaced client, writes %v", n, out.Served, out.ServedCPU, out.ServedWrites, out.Heap>>20, out.CPU, out.Writes)
		return out
	}
	const tenth = 10
	few, all := run(tenth), run(1)
	each := func(name, unit string, of func(egressclients.Outcome) float64) Result {
		return single(name, unit, of(all)/largestClients, of(few)/(largestClients/tenth))
	}
	return []Result{
		each("egress-clients-200000-cpu", "ms/client", func(o egressclients.Outcome) float64 { return millis(o.ServedCPU) }),
		each("egress-clients-200000-memory", "KiB/client", func(o egressclients.Outcome) float64 { return float64(o.Heap) / 1024 }),
		each("egress-clients-200000-writes", "writes/client", func(o egressclients.Outcome) float64 { return float64(o.ServedWrites) }),
		single("egress-clients-200000-served", "s", all.Served.Seconds(), few.Served.Seconds()),
		single("egress-clients-200000-replaced-cpu", "ms/client", millis(all.CPU), millis(few.CPU)),
	}
}

// The Egresses of the lab, each with two gateways. Tunnels lead to the gateways, or to the Service.
var (
	directEgress  = types.NamespacedName{Namespace: "egress", Name: "direct"}
	serviceEgress = types.NamespacedName{Namespace: "egress", Name: "service"}
)

const (
	egressReplicas  = 2
	clientNamespace = "clients"
	// egressPatience is generous because there is no KVM in the virtual machine.
	egressPatience = 3 * time.Minute
)

// raiseEgress starts a lab in pool mode with two nodes and two Egresses.
func (b *testbed) raiseEgress(ctx context.Context) {
	say("starting a lab with gateways")
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	const bits = 8
	b.start(ctx, lab.Options{
		Mode: lab.PoolMode, Egress: true, Nodes: 2, RestartOperators: true,
		Pools:      []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, bits, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16", IPv6: "fd02::/112"})},
		DaemonArgs: []string{"--cooling-period=1s"},
	})
	for _, name := range []string{directEgress.Namespace, clientNamespace} {
		must.OK(b.lab.Kube.CreateNamespace(ctx, name, nil))
	}
	for key, to := range map[types.NamespacedName]v1alpha1.EgressTunnelTo{directEgress: v1alpha1.TunnelToGateways, serviceEgress: v1alpha1.TunnelToService} {
		must.OK(b.lab.Kube.Client.Create(ctx, &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: v1alpha1.EgressSpec{
			Destinations: []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}, Replicas: new(int32(egressReplicas)), TunnelTo: to,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{clientNamespace}},
		}}))
	}
	for _, key := range []types.NamespacedName{directEgress, serviceEgress} {
		egressBed{b}.ready(ctx, key)
	}
	b.installBerth()
}

// egressBed measures pods that use Egresses, on a testbed that raiseEgress started.
type egressBed struct{ *testbed }

// ready waits until an Egress has all of its gateways, and none that terminates.
func (b egressBed) ready(ctx context.Context, key types.NamespacedName) {
	egress := &v1alpha1.Egress{}
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	must.OK(poll.Until(ctx, func() error {
		if err := b.lab.Kube.Client.Get(ctx, key, egress); err != nil {
			return err
		}
		ends := slices.ContainsFunc(egress.Status.Gateways, func(g v1alpha1.EgressGateway) bool { return g.Ending })
		if ends || len(egress.Status.Gateways) != egressReplicas || egress.Status.ReadyGateways != egressReplicas {
			return fmt.Errorf("Egress %s has %d gateways, %d ready: expected %d, and none that terminates", key, len(egress.Status.Gateways), egress.Status.ReadyGateways, egressReplicas)
		}
		return nil
	}))
}

// pod creates a Pod on the node with annotations that name Egresses.
func (b egressBed) pod(ctx context.Context, name string, egresses ...types.NamespacedName) *corev1.Pod {
	return b.benchPod(ctx, clientNamespace, name, egressAnnotations(egresses...))
}

func egressAnnotations(egresses ...types.NamespacedName) map[string]string {
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	for _, e := range egresses {
		annotations[v1alpha1.AnnotationEgressPrefix+e.Namespace] = e.Name
	}
	return annotations
}

// waitKnown waits until the operator has created the EgressClients of pods.
func (b egressBed) waitKnown(ctx context.Context, pods []*corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	must.OK(poll.Until(ctx, func() error {
		list := &v1alpha1.EgressClientList{}
		if err := b.lab.Kube.Client.List(ctx, list, kubeclient.InNamespace(clientNamespace)); err != nil {
			return err
		}
		for _, p := range pods {
			if !slices.ContainsFunc(list.Items, func(c v1alpha1.EgressClient) bool { return c.Name == p.Name && len(c.Spec.Egresses) > 0 }) {
				return fmt.Errorf("pod %s has no EgressClient with Egresses yet", p.Name)
			}
		}
		return nil
	}))
}

// egressAdds measures the whole ADD, from exec to result, of pods that use a dual-stack Egress with two
// gateways. It alternates them with pods that use none. Usually the operator has seen a Pod before its
// ADD, because the kubelet prepares volumes and the sandbox first. The at-once figure is for Pods that
// are created when the ADD starts, so that the ADD waits for the operator. egressAdds also measures the
// first connection from the moment the ADD returns, since gateways serve a pod once they learn of it.
func egressAdds(ctx context.Context, b *bench) []Result {
	bed := egressBed{b.bed}
	defer bed.removePods(ctx)
	n, atOnce := max(b.options.rounds/2, 1), max(b.options.rounds/4, 1)
	var with, without []*corev1.Pod
	for i := range n + warmUp {
		with = append(with, bed.pod(ctx, fmt.Sprintf("with-%d", i), directEgress))
		without = append(without, bed.pod(ctx, fmt.Sprintf("without-%d", i)))
	}
	bed.waitKnown(ctx, with)
	known := rounds(n, func(i int, note note) {
		bed.addAndConnect(ctx, with[i], "with ", note)
		bed.addAndConnect(ctx, without[i], "without ", note)
	})
	unknown := rounds(atOnce, func(i int, note note) {
		bed.addAndConnect(ctx, bed.pod(ctx, fmt.Sprintf("with-at-once-%d", i), directEgress), "with ", note)
		bed.addAndConnect(ctx, bed.pod(ctx, fmt.Sprintf("without-at-once-%d", i)), "without ", note)
	})
	return []Result{
		known.ratio("egress-add", "ms", "with add", "without add"),
		unknown.ratio("egress-add-at-once", "ms", "with add", "without add"),
		known.ratio("egress-del", "ms", "with del", "without del"),
		known.ratio("egress-first-connection", "ms", "with first", "without first"),
	}
}

// addAndConnect measures the ADD of a Pod, its first connection and its DEL.
func (b egressBed) addAndConnect(ctx context.Context, p *corev1.Pod, whose string, note note) {
	rt := b.berth.sandboxOf(p)
	note(whose+"add", b.berth.add(ctx, rt))
	begin := time.Now()
	one, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	if _, err := echo.Ask(one, rt.NetNS, "tcp", netip.AddrPortFrom(site.OutsideHost, echo.Port), netip.Addr{}, "x"); err != nil {
		must.OK(fmt.Errorf("first connection of pod %s: %w", p.Name, err))
	}
	note(whose+"first", millis(time.Since(begin)))
	note(whose+"del", b.berth.del(ctx, rt))
	must.OK(poll.Until(one, func() error { return emptied(rt.NetNS) })) // it must not disturb the next measurement
}

// emptied returns an error while the daemon has not removed everything of a deleted pod, the link last.
func emptied(netns string) error {
	return ns.Netlink(netns, func(nl *netlink.Handle) error {
		links, err := nl.LinkList()
		for _, l := range links {
			if l.Attrs().Name == "eth0" {
				err = errors.Join(err, fmt.Errorf("%s still has eth0", netns))
			}
		}
		return err
	})
}

// removePods deletes the measured Pods, so that they do not disturb egress-failover.
func (b egressBed) removePods(ctx context.Context) {
	if err := b.lab.Kube.Client.DeleteAllOf(ctx, &corev1.Pod{}, kubeclient.InNamespace(clientNamespace), kubeclient.GracePeriodSeconds(0)); err != nil {
		say("could not delete the measured pods: %v", err)
	}
}
