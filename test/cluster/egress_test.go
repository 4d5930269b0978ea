//go:build e2e && fou

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/test/harness"
)

func init() { needs = []string{imagesVariable, releaseVariable} }

// shop is the namespace of the clients.
const shop = "shop"

// internet is the Egress that the clients use.
var internet = types.NamespacedName{Namespace: "egress", Name: "internet"}

// TestEgress runs gateways and clients like users do: installed from the chart, with the privileges that it grants,
// run by containerd and kubelets, with Services by kube-proxy. It needs a kernel with Foo-over-UDP, so it runs in the
// virtual machine (hack/egress-cluster.sh).
func TestEgress(t *testing.T) {
	w := raiseEmpty(t, lab.Options{Mode: lab.PoolMode, Egress: true, Pools: lab.EgressPools(), Kubelets: &lab.Kubelets{}, Progress: func(line string) { t.Log(line) }})
	t.Cleanup(func() {
		if t.Failed() {
			w.tellGateways(t)
		}
	})
	ctx := harness.Deadline(t, 6*soon)
	harness.OK(t, w.Kube.CreateNamespace(ctx, internet.Namespace, map[string]string{"berth.dev/pool": lab.GatewayPool}))
	harness.OK(t, w.Kube.CreateNamespace(ctx, shop, nil))
	two := int32(2)
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: internet.Namespace, Name: internet.Name},
		Spec: v1alpha1.EgressSpec{
			Destinations: []string{site.OutsideHost.String() + "/32", site.OutsideHost6.String() + "/128"}, Replicas: &two,
			SessionAffinity: corev1.ServiceAffinityNone, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{shop}},
		},
	}
	harness.OK(t, w.Kube.Client.Create(ctx, e))
	gateways := w.gateways(t, 2)
	t.Logf("gateways: %v", gateways)
	for name, uses := range map[string]map[string]string{
		"named": {v1alpha1.AnnotationEgressPrefix + internet.Namespace: internet.Name}, "plain": nil,
	} {
		p := plainPod(name, brokenNode)
		p.Namespace, p.Annotations = shop, uses
		harness.OK(t, w.Kube.Client.Create(ctx, p))
	}
	for _, name := range []string{"named", "plain"} {
		harness.Eventually(t, soon, "pod "+name+" is Ready", func() error { return w.isReady(ctx, shop, name) })
	}

	t.Run("source address of a client and of another pod", func(t *testing.T) {
		w.seenBy(t, "named", gateways)
		w.seenBy(t, "plain", w.own(t, "plain"))
	})
	t.Run("kubectl get", func(t *testing.T) {
		w.shows(t, []string{internet.Name, "GatewaysReady"}, "get", "egresses", "--namespace", internet.Namespace)
		w.shows(t, []string{"named", "SetUp"}, "get", "egressclients", "--namespace", shop)
	})
	t.Run("tunnel to the Service", func(t *testing.T) {
		w.editEgress(t, func(s *v1alpha1.EgressSpec) { s.TunnelTo, s.FouSourcePortAuto = v1alpha1.TunnelToService, true })
		service := &corev1.Service{}
		harness.OK(t, w.Kube.Client.Get(ctx, internet, service))
		w.leads(t, "named", service.Spec.ClusterIP)
		w.seenBy(t, "named", gateways)
		w.editEgress(t, func(s *v1alpha1.EgressSpec) { s.TunnelTo, s.FouSourcePortAuto = v1alpha1.TunnelToGateways, false })
		var direct []string
		for a := range gateways {
			direct = append(direct, a.String())
		}
		w.leads(t, "named", direct...)
		w.seenBy(t, "named", gateways)
	})
	t.Run("daemon replaced", func(t *testing.T) {
		p, err := w.daemon(ctx, brokenNode)
		harness.OK(t, err)
		harness.OK(t, w.Kube.Client.Delete(ctx, p))
		w.seenBy(t, "named", gateways)
		harness.Eventually(t, soon, "new berthd is ready", func() error {
			now, err := w.daemon(ctx, brokenNode)
			if err != nil {
				return err
			}
			return w.isReady(ctx, now.Namespace, now.Name)
		})
		w.seenBy(t, "named", gateways)
	})
	t.Run("rollout restart of the gateways", func(t *testing.T) {
		w.kubectl(t, "rollout", "restart", "deployment/"+internet.Name, "--namespace", internet.Namespace)
		harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, 2*soon), internet.Namespace, internet.Name))
		// Old gateways may serve existing connections for a while.
		harness.Eventually(t, soon, "source address of a new gateway", func() error {
			now := w.gatewaysNow(t)
			for a := range gateways {
				delete(now, a)
			}
			if len(now) != 4 {
				return fmt.Errorf("new gateways have %v, want four addresses", slices.Collect(maps.Keys(now)))
			}
			w.seenBy(t, "named", now)
			return nil
		})
	})
	t.Run("cleanup", func(t *testing.T) {
		harness.OK(t, w.Kube.Client.Delete(ctx, e))
		harness.Eventually(t, soon, "source address of the pod itself", func() error { return w.isSeenBy(ctx, "named", w.own(t, "named")) })
		harness.Eventually(t, soon, "all gateways are deleted", func() error {
			pods := &corev1.PodList{}
			if err := w.Kube.Client.List(ctx, pods, client.InNamespace(internet.Namespace)); err != nil {
				return err
			}
			if len(pods.Items) > 0 {
				return fmt.Errorf("%d pods are left", len(pods.Items))
			}
			return nil
		})
	})
	for _, name := range []string{daemonName, operator} {
		out := w.kubectl(t, "logs", "--namespace", addons.Namespace, "--selector=app.kubernetes.io/name="+name, "--tail=-1", "--prefix")
		for line := range strings.Lines(out) {
			if strings.Contains(line, "level=ERROR") || strings.Contains(line, "panic") {
				t.Errorf("%s logged: %s", name, line)
			}
		}
	}
}

// tellGateways logs the output of gateways, including terminated ones.
func (w *world) tellGateways(t *testing.T) {
	for _, more := range []string{"--previous=true", "--previous=false"} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		out, err := w.Kube.Kubectl(ctx, "logs", "--namespace", internet.Namespace, "--selector="+v1alpha1.LabelEgress, "--tail=20", "--prefix", "--ignore-errors", more)
		cancel()
		t.Logf("logs of gateways, %s: %v\n%s", more, err, out)
	}
}

func (w *world) editEgress(t *testing.T, change func(*v1alpha1.EgressSpec)) {
	t.Helper()
	harness.OK(t, w.Kube.EditEgress(t.Context(), internet, func(e *v1alpha1.Egress) { change(&e.Spec) }))
}

// gateways waits until the Egress has n gateways, and returns their addresses.
func (w *world) gateways(t *testing.T, n int) map[netip.Addr]string {
	t.Helper()
	addrs, err := w.Kube.WaitGateways(harness.Deadline(t, soon), internet, n)
	harness.OK(t, err)
	return addrs
}

// gatewaysNow returns the addresses of the gateways that are not terminating.
func (w *world) gatewaysNow(t *testing.T) map[netip.Addr]string {
	t.Helper()
	e, err := w.Kube.Egress(t.Context(), internet)
	harness.OK(t, err)
	addrs := map[netip.Addr]string{}
	for _, g := range e.Status.Gateways {
		for _, text := range g.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && !g.Ending {
				addrs[a] = g.Name
			}
		}
	}
	return addrs
}

// own returns a pod's addresses.
func (w *world) own(t *testing.T, name string) map[netip.Addr]string {
	t.Helper()
	p := &corev1.Pod{}
	harness.OK(t, w.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: shop, Name: name}, p))
	addrs := map[netip.Addr]string{}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs[a] = name
		}
	}
	if len(addrs) != 2 {
		t.Fatalf("addresses of pod %s = %v, want one of each family", name, p.Status.PodIPs)
	}
	return addrs
}

// isSeenBy calls the outside host from a pod, in both families. The host must see one of the given source addresses.
func (w *world) isSeenBy(ctx context.Context, name string, by map[netip.Addr]string) error {
	var errs []error
	for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
		url := "http://" + netip.AddrPortFrom(to, echo.HTTPPort).String() + "/"
		out, err := w.Kube.Kubectl(ctx, "exec", "--namespace", shop, name, "--", "curl", "--silent", "--show-error", "--max-time", "20", url)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r, err := echo.Parse(out)
		if err == nil && by[r.You] == "" {
			err = fmt.Errorf("%s sees pod %s with the address %s, want one of %v", to, name, r.You, slices.Collect(maps.Keys(by)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// leads waits until a client's tunnel leads to one of the given addresses.
func (w *world) leads(t *testing.T, name string, to ...string) {
	t.Helper()
	harness.Eventually(t, soon, fmt.Sprintf("the tunnel of pod %s leads to %v", name, to), func() error {
		out, err := w.Kube.Kubectl(t.Context(), "exec", "--namespace", shop, name, "--", "ip", "route", "show", "table", "117")
		if err == nil && !slices.ContainsFunc(to, func(a string) bool { return strings.Contains(out, " via "+a+" ") }) {
			err = fmt.Errorf("routes:\n%s", out)
		}
		return err
	})
}

func (w *world) seenBy(t *testing.T, name string, by map[netip.Addr]string) {
	t.Helper()
	harness.Eventually(t, soon, "source address of pod "+name, func() error { return w.isSeenBy(t.Context(), name, by) })
}
