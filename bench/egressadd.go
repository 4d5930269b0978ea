package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
)

// egressAdds measures the whole ADD, from exec to result, of pods that use one Egress of both
// families with two gateways, in turn with pods that use none: of Pods that the operator has seen,
// as is usual (a kubelet prepares a Pod's volumes and sandbox before it calls the plugin), and of Pods that
// are made when the ADD begins, which waits for the operator. Then the first connection, begun
// when the ADD ends: gateways serve a pod once they are told of it.
func egressAdds(ctx context.Context, b *bench) ([]Result, error) {
	e := egressBed{b.bed}
	defer e.removePods(ctx)
	n, atOnce := max(b.options.rounds/2, 1), max(b.options.rounds/4, 1)
	var with, without []*corev1.Pod
	var names []string
	for i := range n + warmUp {
		p, err := e.pod(ctx, fmt.Sprintf("with-%d", i), directEgress)
		if err != nil {
			return nil, err
		}
		other, err := e.pod(ctx, fmt.Sprintf("without-%d", i))
		if err != nil {
			return nil, err
		}
		with, without, names = append(with, p), append(without, other), append(names, p.Name)
	}
	if err := e.known(ctx, names...); err != nil {
		return nil, err
	}
	known, err := rounds(n, func(i int, note note) error {
		if err := e.add(ctx, with[i], "with ", note); err != nil {
			return err
		}
		return e.add(ctx, without[i], "without ", note)
	})
	if err != nil {
		return nil, err
	}
	unknown, err := rounds(atOnce, func(i int, note note) error {
		p, err := e.pod(ctx, fmt.Sprintf("with-at-once-%d", i), directEgress)
		if err != nil {
			return err
		}
		if err := e.add(ctx, p, "with ", note); err != nil {
			return err
		}
		if p, err = e.pod(ctx, fmt.Sprintf("without-at-once-%d", i)); err != nil {
			return err
		}
		return e.add(ctx, p, "without ", note)
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		ratio("egress-add", "ms", known["with add"], known["without add"]),
		ratio("egress-add-at-once", "ms", unknown["with add"], unknown["without add"]),
		ratio("egress-del", "ms", known["with del"], known["without del"]),
		ratio("egress-first-connection", "ms", known["with first"], known["without first"]),
	}, nil
}

// add measures the ADD of a Pod, its first connection and its DEL.
func (e egressBed) add(ctx context.Context, p *corev1.Pod, whose string, note note) error {
	rt, err := e.bed.berth.sandbox()
	if err != nil {
		return err
	}
	describe(rt, p)
	add, err := e.bed.berth.add(ctx, rt)
	if err != nil {
		return err
	}
	begin := time.Now()
	one, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	if _, err := echo.Ask(one, rt.NetNS, "tcp", netip.AddrPortFrom(site.OutsideHost, echo.Port), netip.Addr{}, "x"); err != nil {
		return fmt.Errorf("first connection of pod %s: %w", p.Name, err)
	}
	first := time.Since(begin)
	del, err := e.bed.berth.del(ctx, rt)
	note(whose+"add", millis(add))
	note(whose+"first", millis(first))
	note(whose+"del", millis(del))
	return err
}

// describe has the runtime say of which Pod a sandbox is.
func describe(rt *libcni.RuntimeConf, p *corev1.Pod) {
	rt.Args = [][2]string{{"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", string(p.UID)}}
	rt.CapabilityArgs = map[string]any{"io.kubernetes.cri.pod-annotations": p.Annotations}
}

// removePods removes the Pods that were measured. The lab goes anyhow.
func (e egressBed) removePods(ctx context.Context) {
	if err := e.bed.lab.Kube.Client.DeleteAllOf(ctx, &corev1.Pod{}, kubeclient.InNamespace(clientNamespace), kubeclient.GracePeriodSeconds(0)); err != nil {
		say("the pods that were measured stay: %v", err)
	}
}
