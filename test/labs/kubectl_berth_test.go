package labs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// berthPods creates the Pods that a DaemonSet and a Deployment would create for the lab's processes.
func berthPods(t *testing.T, l *lab.Lab, ipam string) {
	t.Helper()
	object := func(name, of, on string) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": of}},
			Spec: corev1.PodSpec{NodeName: on, HostNetwork: true, Containers: []corev1.Container{{
				Name: of, Image: "berth:lab", Env: []corev1.EnvVar{{Name: "BERTH_IPAM", Value: ipam}},
			}}},
		}
		ctx := harness.Deadline(t, patience)
		harness.OK(t, l.Kube.Client.Create(ctx, p))
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		harness.OK(t, l.Kube.Client.Status().Update(ctx, p))
	}
	for _, n := range l.Nodes() {
		object("berthd-of-"+n.Name, "berthd", n.Name)
	}
	object("berth-operator-0", "berth-operator", l.Nodes()[0].Name)
}

// berth runs kubectl berth, with a port forward into the nodes' namespaces like a kubelet's.
func berth(t *testing.T, l *lab.Lab, into any, args ...string) (code int) {
	t.Helper()
	dial := func(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
		for _, n := range l.Nodes() {
			if n.Name == pod.Spec.NodeName {
				return ns.Dial(ctx, n.Netns, "tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.Addr{})
			}
		}
		return nil, fmt.Errorf("unknown node %s", pod.Spec.NodeName)
	}
	var out bytes.Buffer
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Kube.Kubeconfig)
	harness.OK(t, err)
	cmd := kubectl.New(kubectl.Options{Config: cfg, Dial: dial})
	cmd.SetArgs(append(args, "-o", "json", "--node-timeout=1m"))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	code, err = kubectl.ExitCode(cmd.ExecuteContext(harness.Deadline(t, patience)))
	if err != nil {
		t.Fatalf("kubectl berth %v: %v", args, err)
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("kubectl berth %v: %v\n%s", args, err, &out)
	}
	return code
}

// verdict returns the output of `kubectl berth pod`.
func verdict(t *testing.T, l *lab.Lab, object string) kubectl.PodDetails {
	t.Helper()
	var d kubectl.PodDetails
	if code := berth(t, l, &d, "pod", "default/"+object); (code == 0) != d.Diagnosis.OK {
		t.Errorf("exit code = %d, does not match the diagnosis %+v", code, d.Diagnosis)
	}
	return d
}

// eventually waits for a verdict.
func eventually(t *testing.T, l *lab.Lab, object string, want diagnose.Verdict, says string) (d kubectl.PodDetails) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("diagnosis of %s: %s", object, want), func() error {
		if d = verdict(t, l, object); d.Diagnosis.Verdict != want || !strings.Contains(d.Diagnosis.Summary, says) {
			return fmt.Errorf("diagnosis = %+v, want verdict %s and a summary that contains %q", d.Diagnosis, want, says)
		}
		return nil
	})
	return d
}

// TestKubectlBerthAgreesWithTheCluster compares `kubectl berth` with nodes, objects and the kernel in a cluster with
// daemons and operators.
func TestKubectlBerthAgreesWithTheCluster(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	for _, tc := range []struct {
		mode lab.Mode
		ipam string
		o    lab.Options
		room int // room for pods on the first node
		full []diagnose.Verdict
	}{
		{lab.OperatorMode, "eni-operator", lab.Options{Nodes: 2, InstanceType: few.Type}, few.Further(), []diagnose.Verdict{diagnose.AtCapacity}},
		{lab.PoolMode, "pool", lab.Options{Nodes: 2, Pools: []v1alpha1.AddressPool{lab.Pool("default", 1, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/30"})}}, 4, []diagnose.Verdict{diagnose.PoolExhausted}},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			t.Parallel()
			tc.o.DaemonArgs = []string{"--repair-interval=1h", "--warm-wait=2s"}
			l := harness.RaiseQuick(t, tc.mode, tc.o)
			berthPods(t, l, tc.ipam)
			n := l.Nodes()[0]
			var pods []*node.Pod
			for i := range tc.room {
				pods = append(pods, harness.Add(t, n, fmt.Sprintf("p%d", i)))
			}
			first := pods[0]
			d := eventually(t, l, first.ObjectName, diagnose.Works, first.Addr().String())
			doc, err := lab.Document(t.Context(), n)
			harness.OK(t, err)
			if len(d.Attachments) != 1 || d.Attachments[0].Address != first.Addr() || len(d.Attachments[0].Rules) == 0 || d.Attachments[0].Group() == "" {
				t.Errorf("attachments = %+v, want one with the pod's address, rules and group", d.Attachments)
			}
			var s kubectl.Status
			harness.Eventually(t, patience, "status counts every pod", func() error {
				berth(t, l, &s, "status", "--details")
				for _, row := range s.Nodes {
					if row.Name == n.Name && row.Addresses.Used == tc.room && row.Daemon.Version == doc.Version {
						return nil
					}
				}
				return fmt.Errorf("nodes = %+v, want %s with %d used addresses and version %s", s.Nodes, n.Name, tc.room, doc.Version)
			})
			if len(s.Nodes) != 2 || len(s.Unread) > 0 {
				t.Errorf("status = %+v, want 2 nodes, both of them read", s)
			}
			t.Run("pod without a free address", func(t *testing.T) { crowded(t, l, n, tc.full) })
			t.Run("missing route", func(t *testing.T) { broken(t, l, n, first) })
			t.Run("program", func(t *testing.T) { asProgram(t, l, tc.mode) })
			if tc.mode == lab.PoolMode { // the block requested for the extra pod is served immediately
				harness.OK(t, l.Kube.EditAddressPool(harness.Deadline(t, patience), v1alpha1.DefaultPool, func(p *v1alpha1.AddressPool) {
					p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "10.2.0.8/29"})
				}))
			}
			harness.Remove(t, n, first.Name)
			harness.Settle(t, l)
			t.Run("support bundle", func(t *testing.T) { supportBundle(t, n) })
		})
	}
}

// crowded checks that `kubectl berth pod` explains why a pod has no address, before and after its ADD failed.
func crowded(t *testing.T, l *lab.Lab, n *node.Node, want []diagnose.Verdict) {
	if err := harness.AddOnce(t, n, "extra"); err == nil {
		t.Fatal("a pod got an address although none is free")
	}
	harness.OK(t, lab.BindPods(t.Context(), n, "extra"))
	for _, v := range want {
		d := eventually(t, l, "extra-"+n.Name, v, "")
		if d.Diagnosis.Remedy == "" || d.Diagnosis.See == "" {
			t.Errorf("diagnosis = %+v, want a remedy and a reference to the documentation", d.Diagnosis)
		}
	}
	n.Objects.Gone("default", "extra")
}

// broken removes the route to each of a pod's addresses, and checks the diagnosis.
func broken(t *testing.T, l *lab.Lab, n *node.Node, p *node.Pod) {
	for _, a := range p.Addrs {
		brokenRoute(t, l, n, p, a)
	}
}

func brokenRoute(t *testing.T, l *lab.Lab, n *node.Node, p *node.Pod, a netip.Addr) {
	t.Helper()
	route := &netlink.Route{Dst: ns.IPNet(netip.PrefixFrom(a, a.BitLen())), Table: datapath.PodTable, Protocol: datapath.Protocol}
	harness.OK(t, ns.Netlink(n.Netns, func(h *netlink.Handle) error {
		list, err := h.RouteListFiltered(of(ipfamily.Of(a)), route, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("the pod's route: %v, %w", list, err)
		}
		return h.RouteDel(&list[0])
	}))
	// The daemon restores the route eventually: either verdict is right, but a fault must be the route.
	if d := verdict(t, l, p.ObjectName); d.Diagnosis.Verdict != diagnose.Works && !strings.Contains(d.Diagnosis.Summary, "no route to "+a.String()) {
		t.Errorf("diagnosis = %+v, want verdict %s, or a summary about the missing route to %s", d.Diagnosis, diagnose.Works, a)
	}
	eventually(t, l, p.ObjectName, diagnose.Works, "")
}

// asProgram runs the program like kubectl does, against the lab's API server.
func asProgram(t *testing.T, l *lab.Lab, mode lab.Mode) {
	dir := t.TempDir()
	program := filepath.Join(dir, "kubectl-berth")
	harness.OK(t, os.Symlink(filepath.Join(harness.BinDir, "berthctl"), program))
	complete := filepath.Join(dir, "kubectl_complete-berth")
	harness.OK(t, os.Symlink(program, complete))
	run := func(program string, args ...string) string {
		cmd := exec.CommandContext(harness.Deadline(t, patience), program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kube.Kubeconfig)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); err != nil && code != kubectl.ExitUnwell {
			t.Errorf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
		}
		return string(out)
	}
	if out := run(program, "status", "--as", "nobody"); !strings.Contains(out, `User "nobody" cannot list`) {
		t.Errorf("status --as nobody: want an authorization error, got:\n%s", out)
	}
	out := run(program, "status")
	if !strings.Contains(out, fmt.Sprintf("Berth in %s mode", mode)) || !strings.Contains(out, l.Nodes()[1].Name) || strings.Contains(out, "\x1b") {
		t.Errorf("status:\n%s", out)
	}
	if out := run(complete, "node", ""); !strings.Contains(out, l.Nodes()[0].Name) {
		t.Errorf("completion lacks the node: %s", out)
	}
	if out := run(program, "--help"); !strings.Contains(out, "kubectl berth [command]") {
		t.Errorf("help:\n%s", out)
	}
}
