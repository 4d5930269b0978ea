package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/poll"
)

// The Egresses of the lab, each with two gateways: tunnels lead to these themselves, or to the Service.
var (
	directEgress  = types.NamespacedName{Namespace: "egress", Name: "direct"}
	serviceEgress = types.NamespacedName{Namespace: "egress", Name: "service"}
)

const (
	egressReplicas  = 2
	clientNamespace = "clients" // their namespace
	// egressPatience only ends what hangs: there is no KVM in the virtual machine.
	egressPatience = 3 * time.Minute
)

// raiseEgressLab raises a lab of address pools with two nodes and two Egresses.
func (b *testbed) raiseEgressLab(ctx context.Context) (err error) {
	say("raising a lab with gateways")
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	const bits = 8
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.dirs.run, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.options.binDir,
		Mode: lab.PoolMode, Egress: true, Nodes: 2, RestartOperators: true,
		Pools:      []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, bits, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16", IPv6: "fd02::/112"})},
		DaemonArgs: benchDaemonArgs, OperatorArgs: []string{"--log-level=warn"},
	})
	if err != nil {
		return fmt.Errorf("raise a lab: %w", err)
	}
	b.few = b.lab.Nodes()[0]
	for _, name := range []string{directEgress.Namespace, clientNamespace} {
		if err := b.lab.Kube.CreateNamespace(ctx, name, nil); err != nil {
			return err
		}
	}
	for key, to := range map[types.NamespacedName]v1alpha1.EgressTunnelTo{directEgress: v1alpha1.TunnelToGateways, serviceEgress: v1alpha1.TunnelToService} {
		replicas := int32(egressReplicas)
		e := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: v1alpha1.EgressSpec{
			Destinations: []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}, Replicas: &replicas, TunnelTo: to,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{clientNamespace}},
		}}
		if err := b.lab.Kube.Client.Create(ctx, e); err != nil {
			return fmt.Errorf("create Egress %s: %w", key, err)
		}
	}
	for _, key := range []types.NamespacedName{directEgress, serviceEgress} {
		if err := (egressBed{b}).ready(ctx, key); err != nil {
			return err
		}
	}
	return b.installBerth()
}

// egressBed measures pods that use Egresses, on a testbed that raiseEgressLab raised.
type egressBed struct{ bed *testbed }

// ready waits until an Egress has all its gateways and no other, and none that ends.
func (e egressBed) ready(ctx context.Context, key types.NamespacedName) error {
	egress := &v1alpha1.Egress{}
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	return poll.Until(ctx, func() error {
		if err := e.bed.lab.Kube.Client.Get(ctx, key, egress); err != nil {
			return err
		}
		ends := slices.ContainsFunc(egress.Status.Gateways, func(g v1alpha1.EgressGateway) bool { return g.Ending })
		if ends || len(egress.Status.Gateways) != egressReplicas || egress.Status.ReadyGateways != egressReplicas {
			return fmt.Errorf("Egress %s has %d gateways, of which %d are ready: expected %d", key, len(egress.Status.Gateways), egress.Status.ReadyGateways, egressReplicas)
		}
		return nil
	})
}

// pod makes a Pod on the node, that names Egresses by annotation.
func (e egressBed) pod(ctx context.Context, name string, egresses ...types.NamespacedName) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: clientNamespace, Name: name, Annotations: egressAnnotations(egresses...)}}
	p.Spec = corev1.PodSpec{NodeName: e.bed.few.Name, Containers: []corev1.Container{{Name: "bench", Image: "bench"}}}
	if err := e.bed.lab.Kube.Client.Create(ctx, p); err != nil {
		return nil, fmt.Errorf("make a Pod: %w", err)
	}
	return p, nil
}

func egressAnnotations(egresses ...types.NamespacedName) map[string]string {
	of := map[string]string{"kubernetes.io/config.source": "api"}
	for _, e := range egresses {
		of[v1alpha1.AnnotationEgressPrefix+e.Namespace] = e.Name
	}
	return of
}

// known waits until the operator has said what pods are to have.
func (e egressBed) known(ctx context.Context, pods ...string) error {
	ctx, cancel := context.WithTimeout(ctx, egressPatience)
	defer cancel()
	return poll.Until(ctx, func() error {
		list := &v1alpha1.EgressClientList{}
		if err := e.bed.lab.Kube.Client.List(ctx, list, kubeclient.InNamespace(clientNamespace)); err != nil {
			return err
		}
		for _, name := range pods {
			if !slices.ContainsFunc(list.Items, func(c v1alpha1.EgressClient) bool { return c.Name == name && len(c.Spec.Egresses) > 0 }) {
				return fmt.Errorf("there is no EgressClient of pod %s yet", name)
			}
		}
		return nil
	})
}
