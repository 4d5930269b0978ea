//go:build guest && e2e

package migrate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// seen checks that the outside sees a client as one of the gateways. It is never seen as itself.
func (m *egressMove) seen(when string, p replay.Pod, by []netip.Addr) {
	m.t.Helper()
	for _, to := range []netip.Addr{site.OutsideHost, site.OutsideHost6} {
		if !slices.ContainsFunc(p.Addresses(), func(a netip.Addr) bool { return a.Is4() == to.Is4() }) {
			continue
		}
		leaked := false
		harness.Eventually(m.t, harness.Patience, fmt.Sprintf("%s: %s/%s reaches %s by %v", when, p.Namespace, p.Name, to, by), func() error {
			r, err := echo.Ask(m.t.Context(), m.PodNetns(p), "udp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
			leaked = err == nil && slices.Contains(p.Addresses(), r.You)
			if err == nil && !leaked && !slices.Contains(by, r.You) {
				err = fmt.Errorf("seen as %s", r.You)
			}
			return err
		})
		if leaked {
			m.t.Fatalf("%s: %s/%s reached %s with its own address", when, p.Namespace, p.Name, to)
		}
	}
}

// seenByNode checks by which gateways clients of each node leave; nil: those of Coil.
func (m *egressMove) seenByNode(when string, by map[string][]netip.Addr) {
	m.t.Helper()
	m.step(when)
	for _, p := range m.clients {
		to := by[p.Node]
		if to == nil {
			to = m.coils(p)
		}
		m.seen(when, p, to)
	}
}

// clientsWait checks that the EgressClients of a node that has not moved say so.
func (m *egressMove) clientsWait(node string) {
	m.t.Helper()
	for _, p := range m.clients {
		if p.Node != node {
			continue
		}
		harness.Eventually(m.t, harness.Patience, "EgressClient of "+p.Name, func() error {
			o := &v1alpha1.EgressClient{}
			if err := m.lab.Kube.Client.Get(m.t.Context(), types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, o); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Reason != "WaitingForMigration" {
				return fmt.Errorf("condition %+v, want that it waits for the migration", c)
			}
			return nil
		})
	}
}

// gatewaysOfCoilEnd ends the pods of Coil's gateways, as the garbage collector and kubelets do once finish has removed the
// ReplicaSets.
func (m *egressMove) gatewaysOfCoilEnd() {
	m.t.Helper()
	sets := &appsv1.ReplicaSetList{}
	harness.OK(m.t, m.lab.Kube.Client.List(m.t.Context(), sets, client.InNamespace(egressNamespace), client.MatchingLabels{"app.kubernetes.io/name": "coil"}))
	if len(sets.Items) > 0 {
		m.t.Errorf("%d ReplicaSets of Coil's gateways are left after finish", len(sets.Items))
	}
	for _, p := range m.Pods {
		if !p.IsGateway() {
			continue
		}
		n, err := m.lab.Node(p.Node)
		harness.OK(m.t, err)
		list, err := libcni.NetworkConfFromFile(filepath.Join(n.ConfDir(), "10-berth.conflist"))
		harness.OK(m.t, err)
		harness.OK(m.t, n.Runtime(m.File(p.Node, "/var/lib/cni")).DelNetworkList(m.t.Context(), list, &libcni.RuntimeConf{
			ContainerID: p.Container, NetNS: m.PodNetns(p), IfName: p.Interface,
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}},
		}))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
		harness.OK(m.t, client.IgnoreNotFound(m.lab.Kube.Client.Delete(m.t.Context(), pod, client.GracePeriodSeconds(0))))
	}
}

// nothingLeft checks that nothing of Coil is left on nodes, in pods and in the API server.
func (m *egressMove) nothingLeft() {
	m.t.Helper()
	const dump = `ip -d link; ip route show table all proto 30; ip -6 route show table all proto 30; ip rule; ip -6 rule; ip fou show; nft list tables`
	in := map[string]string{}
	for _, n := range m.lab.Nodes() {
		in["node "+n.Name] = n.Netns
		for _, path := range []string{"/etc/cni/net.d/10-coil.conflist", "/opt/cni/bin/coil", "/run/coild.sock"} {
			if _, err := os.Stat(m.File(n.Name, path)); !errors.Is(err, os.ErrNotExist) {
				m.t.Errorf("%s of %s is left: %v", path, n.Name, err)
			}
		}
	}
	for _, p := range m.clients {
		in["pod "+p.Name] = m.PodNetns(p)
	}
	for what, netns := range in {
		out, err := exec.Command("nsenter", "--net="+netns, "sh", "-c", dump).CombinedOutput()
		harness.OK(m.t, err)
		for line := range strings.Lines(string(out)) {
			for _, trace := range []string{"COIL:", "coil_", "fou-dummy", "fou4_", "fou6_", "proto 30", "lookup 116", "lookup 1004", "mangle"} {
				if strings.Contains(line, trace) {
					m.t.Errorf("left in %s: %s", what, line)
				}
			}
		}
	}
	for _, kind := range []string{"AddressPool", "AddressBlock", "BlockRequest", "Egress"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: replay.Group, Version: "v2", Kind: kind + "List"})
		harness.OK(m.t, m.lab.Kube.Client.List(m.t.Context(), list))
		if len(list.Items) > 0 {
			m.t.Errorf("%d objects of Coil's kind %s are left", len(list.Items), kind)
		}
	}
}

// byService checks that clients reach Berth's gateways by the Service that was Coil's, at its addresses.
func (m *egressMove) byService() {
	m.t.Helper()
	svc := &corev1.Service{}
	harness.OK(m.t, m.lab.Kube.Client.Get(m.t.Context(), natKey, svc))
	for _, ip := range svc.Spec.ClusterIPs {
		if m.services[netip.MustParseAddr(ip)] != natKey.Name {
			m.t.Errorf("Service %s has %s, want the addresses that it had with Coil", natKey.Name, ip)
		}
	}
	owner := metav1.GetControllerOf(svc)
	if owner == nil || owner.APIVersion != v1alpha1.GroupVersion.String() {
		m.t.Errorf("Service %s belongs to %+v, want Berth's Egress", natKey.Name, owner)
	}
	of, err := m.lab.Kube.WaitGateways(harness.Deadline(m.t, harness.Patience), natKey, 2)
	harness.OK(m.t, err)
	to, only := map[netip.Addr]netip.Addr{}, []netip.Addr{}
	for service, name := range m.services {
		for a := range of {
			if name == natKey.Name && a.Is4() == service.Is4() && !to[service].IsValid() {
				to[service] = a
				only = append(only, a)
			}
		}
	}
	for _, n := range m.Nodes {
		harness.OK(m.t, m.Proxy(n.Name, to))
	}
	harness.OK(m.t, m.lab.Kube.EditEgress(m.t.Context(), natKey, func(e *v1alpha1.Egress) { e.Spec.TunnelTo = v1alpha1.TunnelToService }))
	for _, p := range m.clients {
		if len(p.Addresses()) == 2 && !slices.ContainsFunc(p.Links, func(l replay.Link) bool { return m.services[l.Remote()] == "partner" }) {
			m.seen("by the Service", p, only)
		}
	}
}
