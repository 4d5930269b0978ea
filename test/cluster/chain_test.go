//go:build e2e

package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/test/harness"
)

const (
	hostPort = 31001
	rate     = 8_000_000 // bits a second
)

// chainedPlugins creates a pod with a host port and bandwidth limits. Where machines have no reference plugins, those
// of Berth's image serve both.
func chainedPlugins(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	conflist := sh(t, h, "cat /etc/cni/net.d/10-berth.conflist")
	for _, plugin := range []string{"portmap", "bandwidth"} {
		if !strings.Contains(conflist, fmt.Sprintf("%q", plugin)) {
			t.Errorf("%s is not chained: %s", plugin, conflist)
		}
		if w.Kubelets.NoCNIPlugins { // those of Berth need no library, so berthd asks them what they speak
			if out := sh(t, h, "CNI_COMMAND=VERSION /opt/cni/bin/"+plugin+" </dev/null"); !strings.Contains(out, "1.1.0") {
				t.Errorf("%s speaks %s", plugin, out)
			}
		}
	}
	if w.Kubelets.NoCNIPlugins {
		if !strings.Contains(conflist, "1.1.0") {
			t.Errorf("the configuration is in an older version: %s", conflist)
		}
		if got, want := strings.Fields(sh(t, h, "ls /opt/cni/bin")), "bandwidth berth loopback portmap"; strings.Join(got, " ") != want {
			t.Errorf("plugins %v, want %s", got, want)
		}
	}

	p := plainPod("chained", brokenNode)
	p.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "8M"}
	p.Spec.Containers[0].Args = []string{"netexec", fmt.Sprintf("--http-port=%d", webPort)}
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: webPort, HostPort: hostPort}}
	harness.OK(t, w.Kube.Client.Create(t.Context(), p))
	w.podReady(t, p.Name)
	harness.OK(t, w.Kube.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	url := "http://" + netip.AddrPortFrom(netip.MustParseAddr(p.Status.HostIP), hostPort).String() + "/hostname"
	harness.Eventually(t, soon, "the host port answers", func() error {
		out, err := w.Kube.Kubectl(t.Context(), "exec", clientName, "--", "curl", "-s", "-m", "5", url) // from another node
		if err == nil && strings.TrimSpace(out) != p.Name {
			err = fmt.Errorf("%s answers %q", url, out)
		}
		return err
	})
	n, err := w.Node(brokenNode)
	harness.OK(t, err)
	if found := harness.RateLimits(t, n.Netns, rate/8); len(found["veth"]) != 1 || len(found["ifb"]) != 1 {
		t.Errorf("the pod's bandwidth is limited on %v, want a veth for what it gets and an ifb for what it sends", found)
	}
	w.removePods(t, p.Name)
	harness.Eventually(t, soon, "limits go with the pod", func() error {
		if found := harness.RateLimits(t, n.Netns, rate/8); len(found) > 0 {
			return fmt.Errorf("limits are left on %v", found)
		}
		return nil
	})
	out, err := w.Kube.Kubectl(t.Context(), "exec", clientName, "--", "sh", "-c", "curl -s -m 1 "+url+"; echo exit $?")
	if gone := strings.TrimSpace(out); err != nil || gone != "exit 7" && gone != "exit 28" { // curl(1): not connected, or no answer in time
		t.Errorf("the host port still answers: %s (%v)", out, err)
	}
}
