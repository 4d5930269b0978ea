// Package migrate moves nodes of recorded clusters to Berth's own programs.
package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/forward"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berthctl")) }

const nodeName = "node-1"

// cluster puts a recorded cluster's objects into the control plane, and makes them Berth's.
func cluster(t *testing.T, name string) {
	t.Helper()
	harness.StartKube(t)
	harness.OK(t, harness.ApplyAccess(t.Context(), deploy.PoolMode))
	c := harness.KubeClient(t)
	for _, crd := range replay.CRDs() {
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), crd)))
	}
	harness.Eventually(t, time.Minute, "Coil's kinds", func() error {
		return replay.Apply(t.Context(), c, name, "Node", "Namespace", "AddressPool", "AddressBlock", "BlockRequest")
	})
	cfg := harness.ControlPlane.Config()
	cfg.GroupVersion, cfg.NegotiatedSerializer, cfg.ContentType = &schema.GroupVersion{}, serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(), runtime.ContentTypeJSON
	api, err := rest.UnversionedRESTClientFor(cfg)
	harness.OK(t, err)
	m := &objects.Cluster{API: api, Operator: "system:serviceaccount:kube-system:berth-operator", Namespace: "kube-system", Clock: clock.Real{}}
	_, err = m.Begin(t.Context())
	harness.OK(t, err)
}

// machine is a replayed node with Berth's programs.
type machine struct {
	*replay.Raised
	*node.Node
	t *testing.T
}

func raise(t *testing.T, name string) *machine {
	t.Helper()
	c, err := replay.Load(name)
	harness.OK(t, err)
	dir := t.TempDir()
	r, err := c.Only(nodeName).Raise(nstest.Unique("")+"-", dir)
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, r.Close()) })
	_ = os.Remove(r.File(nodeName, "/opt/cni/bin/portmap")) // the real one takes its place

	// The API server is behind the nodes' router.
	at := netip.AddrPortFrom(netip.MustParseAddr("172.30.0.1"), harness.ControlPlane.Endpoint().Port())
	l, err := ns.Listen(r.Router(), at)
	harness.OK(t, err)
	f := forward.Start(l, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", harness.ControlPlane.Endpoint().String())
	})
	t.Cleanup(func() { _ = f.Close() })
	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, nodeName)
	harness.OK(t, err)
	cfg := harness.ControlPlane.ConfigWithToken(token)
	cfg.Host, cfg.ServerName = "https://"+at.String(), harness.ControlPlane.Endpoint().Addr().String()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(kubeconfig, cfg))

	n, err := node.New(node.Options{
		Name: nodeName, InstanceID: nodeName, Netns: r.Netns(nodeName), Dir: filepath.Join(dir, nodeName), BinDir: harness.BinDir, Cluster: "replay", PodPrefix: nstest.Unique("pod"),
		Args: []string{"--ipam=pool", "--kubeconfig=" + kubeconfig, "--cni-network=" + coil.DefaultNetwork, "--cooling-period=1s", "--repair-interval=1s"},
		Log:  slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	harness.OK(t, err)
	m := &machine{r, n, t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.LogTail(60))
		}
		if n.Running() {
			harness.OK(t, n.Stop(harness.Patience))
		}
	})
	return m
}

// tool runs `berthctl migrate coil`. fault is a failpoint.
func (m *machine) tool(fault string, args ...string) (r migrate.Report, err error) {
	args = slices.Concat([]string{"migrate", "coil"}, args, []string{
		"-o", "json", "--ipam=pool", "--node-name=" + nodeName, "--state-dir=" + m.StateDir(), "--cni-conf-dir=" + m.ConfDir(), "--cni-network=" + coil.DefaultNetwork,
		"--netns-dir=" + ns.Dir, "--results-dir=" + m.File(nodeName, "/var/lib/cni/results"), "--coil-plugin=" + m.File(nodeName, "/opt/cni/bin/coil"),
		"--coild-socket=" + m.File(nodeName, "/run/coild.sock"),
	})
	var out, log bytes.Buffer
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(harness.BinDir, "berthctl"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"BERTH_FAILPOINTS=" + fault}, &out, &log
	if err := ns.Do(m.Netns(nodeName), cmd.Run); err != nil {
		return r, fmt.Errorf("berthctl %s: %w\n%s", strings.Join(args[:3], " "), err, &log)
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// sandbox is a recorded pod as its runtime knows it.
func (m *machine) sandbox(p replay.Pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.Container, NetNS: m.PodNetns(p), IfName: p.Interface,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}},
	}
}

// each calls do with the runtime, and Berth's configuration, for each recorded pod.
func (m *machine) each(do func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, p replay.Pod)) {
	m.t.Helper()
	list, err := libcni.NetworkConfFromFile(filepath.Join(m.ConfDir(), "10-berth.conflist"))
	harness.OK(m.t, err)
	cni := m.Runtime(m.File(nodeName, "/var/lib/cni"))
	for _, p := range m.recorded() {
		do(cni, list, p)
	}
}

// recorded returns the recorded pods; those that were added are Node.Pods.
func (m *machine) recorded() []replay.Pod { return m.Raised.Pods }

// A node of each recorded version moves to Berth's programs while its pods hold connections, and the tool and the daemon are
// killed. The daemon then serves the adopted pods as its own: CHECK, new pods beside them, and DEL.
func TestNodesMoveFromCoil(t *testing.T) {
	for _, name := range []string{replay.V2Newest, replay.V2Oldest} {
		t.Run(name, func(t *testing.T) {
			cluster(t, name)
			m := raise(t, name)
			var conns []*echo.Conn
			used := map[netip.Addr]string{}
			for _, p := range m.recorded() {
				s, err := echo.Serve(m.PodNetns(p))
				harness.OK(t, err)
				t.Cleanup(func() { _ = s.Close() })
				for _, a := range p.Addresses() {
					used[a] = p.Name
					for _, network := range []string{"tcp", "udp"} {
						c, err := echo.Connect(t.Context(), m.Router(), network, netip.AddrPortFrom(a, echo.Port), netip.Addr{})
						harness.OK(t, err)
						conns = append(conns, c)
					}
				}
			}
			talks := harness.Converse(t, 5*time.Millisecond, 20*time.Second, conns...)
			talks.GoOn(t, len(conns))

			if _, err := m.tool("adopt.link.after=kill@4", "apply"); err == nil {
				t.Error("the tool was not killed")
			}
			r, err := m.tool("", "apply")
			harness.OK(t, err)
			if n := migrate.Count(r.Pods, migrate.Adopted); n != len(m.recorded()) {
				t.Fatalf("adopted %d of %d pods: %+v", n, len(m.recorded()), r.Pods)
			}
			ctx := harness.Deadline(t, harness.Patience)
			harness.OK(t, m.Start())
			harness.OK(t, m.WaitReady(ctx))
			talks.GoOn(t, len(conns))
			if _, err := m.tool("", "apply"); err == nil || !strings.Contains(err.Error(), "another berthd") {
				t.Errorf("apply while berthd runs: %v", err)
			}
			if _, err := m.tool("coil.tidy.after=kill@3", "apply", "--finish"); err == nil {
				t.Error("the tool was not killed")
			}
			harness.Eventually(t, harness.Patience, "finish", func() error { _, err := m.tool("", "apply", "--finish"); return err })
			for i := range 4 { // from blocks that the node has: nobody cuts new ones here
				p, err := m.AddPod(ctx, fmt.Sprintf("new-%d", i), node.PodOptions{Namespace: []string{"plain", "shop", "plain", "plain"}[i]})
				harness.OK(t, err)
				for _, a := range p.Addrs {
					if other := used[a]; other != "" {
						t.Errorf("pod new-%d has %s of %s", i, a, other)
					}
					used[a] = p.Name
				}
			}
			checkAll := func() {
				t.Helper()
				m.each(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, p replay.Pod) {
					if err := cni.CheckNetworkList(ctx, list, m.sandbox(p)); err != nil {
						t.Errorf("CHECK of %s/%s: %v", p.Namespace, p.Name, err)
					}
				})
			}
			checkAll()
			harness.OK(t, m.Kill())
			harness.OK(t, m.Start())
			harness.OK(t, m.WaitReady(ctx))
			checkAll()
			r, err = m.tool("", "verify")
			harness.OK(t, err)
			if len(r.Problems) > 0 {
				t.Errorf("problems: %q", r.Problems)
			}
			talks.GoOn(t, len(conns))
			harness.OK(t, talks.End())

			m.each(func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, p replay.Pod) {
				if err := cni.DelNetworkList(ctx, list, m.sandbox(p)); err != nil {
					t.Errorf("DEL of %s/%s: %v", p.Namespace, p.Name, err)
				}
			})
			harness.Eventually(t, harness.Patience, "links of four new pods alone", func() (err error) {
				return ns.Netlink(m.Netns(nodeName), func(h *netlink.Handle) error {
					links, err := h.LinkList()
					left := slices.DeleteFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == "lo" || l.Attrs().Name == "eth0" })
					if err == nil && len(left) != 4 {
						err = fmt.Errorf("%d links", len(left))
					}
					return err
				})
			})
			for i := range 4 {
				harness.OK(t, m.DelPod(ctx, fmt.Sprintf("new-%d", i)))
			}
		})
	}
}
