//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// networksCRD defines NetworkAttachmentDefinitions (Kubernetes Network Custom
// Resource Definition De-facto Standard, section 3.4).
const networksCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}}
`

// multusAccount is Multus's service account.
var multusAccount = types.NamespacedName{Namespace: "kube-system", Name: "multus"}

// installMultus creates Multus's kind and account.
func installMultus(t *testing.T, c *lab.Cluster) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	harness.OK(t, yaml.Unmarshal([]byte(networksCRD), &crd.Object))
	meta := metav1.ObjectMeta{Name: multusAccount.Name}
	for _, o := range []client.Object{
		crd,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: multusAccount.Name, Namespace: multusAccount.Namespace}},
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"get", "update"}},
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: multusAccount.Name, Namespace: multusAccount.Namespace}},
		},
	} {
		harness.OK(t, c.Client.Create(t.Context(), o))
	}
}

// useMultus makes Multus the network of a node, which calls Berth for every pod's first interface.
// Multus drops the path of the daemon's socket, so it must be at its default: only one node of a
// sandbox can use Multus.
func useMultus(t *testing.T, l *lab.Lab, n *node.Node, binary string) {
	t.Helper()
	harness.OK(t, os.Symlink(n.StateDir(), filepath.Dir(cni.DefaultSocket)))
	t.Cleanup(func() { os.Remove(filepath.Dir(cni.DefaultSocket)) })
	program, err := os.ReadFile(binary)
	harness.OK(t, err)
	harness.OK(t, os.WriteFile(filepath.Join(n.CNIBinDir(), "multus"), program, 0o755))
	token, err := l.Kube.Token(t.Context(), multusAccount, (*corev1.Pod)(nil))
	harness.OK(t, err)
	kubeconfig := filepath.Join(n.Dir, "etc", "kubernetes", "multus.kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(kubeconfig, l.Kube.ConfigWithToken(token)))
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network",
		"plugins": []any{map[string]any{
			"type": "multus", "kubeconfig": kubeconfig, "clusterNetwork": filepath.Join(n.ConfDir(), "10-berth.conflist"),
			"confDir": n.ConfDir(), "cniDir": filepath.Join(n.Dir, "var", "lib", "multus"), "binDir": n.CNIBinDir(),
			"capabilities": map[string]bool{"portMappings": true},
		}},
	})
	harness.OK(t, err)
	harness.OK(t, os.WriteFile(filepath.Join(n.ConfDir(), "00-multus.conflist"), conf, 0o600))
}

// attachmentDefinition creates a network of Berth's with addresses of a pool.
func attachmentDefinition(t *testing.T, c *lab.Cluster, name, pool string) {
	t.Helper()
	config, err := json.Marshal(map[string]string{"cniVersion": "1.0.0", "name": name, "type": "berth", "pool": pool})
	harness.OK(t, err)
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": string(config)}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1")
	o.SetKind("NetworkAttachmentDefinition")
	o.SetNamespace("default")
	o.SetName(name)
	harness.Eventually(t, patience, "make a NetworkAttachmentDefinition", func() error { return c.Client.Create(t.Context(), o.DeepCopy()) })
}

// TestMultusDelegatesToBerth has Multus call Berth as the cluster's network, and as a further one with
// a pool of its own.
func TestMultusDelegatesToBerth(t *testing.T) {
	t.Parallel()
	binary, err := exec.Command("../../hack/tool.sh", "multuscni", "multus").Output()
	if err != nil {
		t.Fatalf("Multus is not built: run `make e2e`, which builds it: %v", err)
	}
	storage := lab.Pool("storage", 3, v1alpha1.PoolSubnet{IPv4: "10.3.0.0/24", IPv6: "fd03::/120"})
	storage.Spec.PodNamespaces = []string{"default"}
	closed := lab.Pool("closed", 3, v1alpha1.PoolSubnet{IPv4: "10.4.0.0/24", IPv6: "fd04::/120"})
	l := harness.RaiseQuick(t, lab.PoolMode, lab.Options{
		Nodes: 2, Pools: append(lab.DefaultPools(), storage, closed), DaemonArgs: []string{"--ignore-untold-annotations"},
	})
	installMultus(t, l.Kube)
	nodes := l.Nodes()
	for _, n := range nodes {
		harness.Ready(t, n)
	}
	useMultus(t, l, nodes[0], strings.TrimSpace(string(binary)))
	attachmentDefinition(t, l.Kube, "storage", "storage")
	attachmentDefinition(t, l.Kube, "closed", "closed")

	ctx := harness.Deadline(t, time.Minute)
	with := func(networks string) node.PodOptions {
		return node.PodOptions{Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": networks}}
	}
	client, err := nodes[1].AddPod(ctx, "client", node.PodOptions{})
	harness.OK(t, err)
	p, err := nodes[0].AddPod(ctx, "web", with("storage, storage@net7"))
	harness.OK(t, err)

	seen := map[netip.Addr]bool{}
	for ifName, subnet := range map[string]string{"eth0": "10.2.0.0/16", "net1": "10.3.0.0/24", "net7": "10.3.0.0/24"} {
		addr := ipv4Of(t, p.Netns(), ifName)
		if !netip.MustParsePrefix(subnet).Contains(addr) || seen[addr] {
			t.Errorf("%s has %s, want an address of its own of %s", ifName, addr, subnet)
		}
		seen[addr] = true
		for _, from := range []string{nodes[0].Netns, nodes[1].Netns, client.Netns()} {
			reply, err := echo.Ask(ctx, from, "tcp", netip.AddrPortFrom(addr, echo.Port), netip.Addr{}, ifName)
			if err != nil || reply.To != addr {
				t.Errorf("ask %s of the pod at %s from %s: %v, %v", ifName, addr, from, reply, err)
			}
		}
		reply, err := echo.Ask(ctx, p.Netns(), "tcp", netip.AddrPortFrom(client.Addr(), echo.Port), addr, "from "+ifName)
		if err != nil || reply.You != addr {
			t.Errorf("the pod asks from %s: %v, %v", addr, reply, err)
		}
	}
	doc := harness.Document(t, nodes[0])
	if got := len(doc.Allocated); got != 3 {
		t.Errorf("%d attachments, want one for each of three interfaces: %+v", got, doc.Allocated)
	}

	_, err = nodes[0].AddPod(ctx, "refused", node.PodOptions{Once: true, Annotations: with("closed").Annotations})
	if err == nil || !strings.Contains(err.Error(), "network's configuration names AddressPool closed, whose spec.podNamespaces does not list namespace default") {
		t.Errorf("a network with a pool that is not for its namespace: %v", err)
	}

	for _, n := range nodes {
		harness.RemoveAll(t, n)
		harness.Shows(t, n, "all addresses have cooled", func(doc introspect.Document) error {
			return harness.Equal("addresses in use or cooling", doc.Totals.Cooling+doc.Totals.Allocated, 0)
		})
	}
	harness.Settle(t, l)
}

// ipv4Of reads the IPv4 address of an interface in a network namespace.
func ipv4Of(t *testing.T, netns, ifName string) (found netip.Addr) {
	t.Helper()
	harness.OK(t, ns.Do(netns, func() error {
		link, err := net.InterfaceByName(ifName)
		if err != nil {
			return fmt.Errorf("interface %s: %w", ifName, err)
		}
		addrs, err := link.Addrs()
		i := slices.IndexFunc(addrs, func(a net.Addr) bool { p, err := netip.ParsePrefix(a.String()); return err == nil && p.Addr().Is4() })
		if err == nil && i >= 0 {
			found = netip.MustParsePrefix(addrs[i].String()).Addr()
		}
		return err
	}))
	return found
}
