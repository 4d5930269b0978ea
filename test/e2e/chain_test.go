//go:build e2e

package e2e

import (
	"net/netip"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/test/harness"
)

// TestHostPortAndBandwidth has a pod as a kubelet tells of it: with a host port, and
// the annotations that limit what it gets and sends. containerd passes them on to
// the plugins that berthd chained, those of the distribution.
func TestHostPortAndBandwidth(t *testing.T) {
	t.Parallel()
	const port, rate = 8080, 8_000_000 // bits a second
	l, runtimes := raise(t, 2, true)
	c, other := runtimes[0], runtimes[1]
	config := c.sandboxConfig("web", 0)
	config.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: echo.Port, HostPort: port}}
	config.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "8M"}
	ctx := harness.Deadline(t, patience)
	reply, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	harness.OK(t, err)
	s, err := c.inspect(ctx, reply.GetPodSandboxId())
	harness.OK(t, err)

	to := netip.AddrPortFrom(harness.PrimaryAddress(t, l, c.node), port)
	harness.Eventually(t, patience, "the host port answers", func() error {
		return harness.AsksBy(t, other.node.Netns, "tcp", to, harness.PrimaryAddress(t, l, other.node))
	})
	if found := harness.RateLimits(t, c.node.Netns, rate/8); found["veth"] != 1 || found["ifb"] != 1 {
		t.Errorf("the pod's bandwidth is limited on %v, want a veth for what it gets and an ifb for what it sends", found)
	}

	empty(t, l, runtimes...)
	short := harness.Deadline(t, 2*time.Second)
	if _, err := echo.Ask(short, other.node.Netns, "tcp", to, netip.Addr{}, "hello"); err == nil {
		t.Errorf("the host port of %s still answers", s.name)
	}
	if found := harness.RateLimits(t, c.node.Netns, rate/8); len(found) > 0 {
		t.Errorf("limits are left on %v", found)
	}
}
