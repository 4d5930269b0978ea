//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// witness lets the VPC's router record packets that arrive by an ENI without their source address. The fabric drops
// and counts them only.
const witness = `table inet witness {
 set seen { type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service; flags dynamic; size 4096; counter; }
 chain prerouting { type filter hook prerouting priority -301;
  meta nfproto ipv4 iifname != "lo" fib saddr . iif oif missing meta l4proto {tcp,udp,icmp} update @seen { ip saddr . ip daddr . meta l4proto . th sport . th dport }
 }
}`

func (w *world) nft(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + w.RouterPath(), "nft"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// forged returns the packets since the last call, as sender, receiver, protocol and ports.
func (w *world) forged(t *testing.T) (packets [][]string) {
	t.Helper()
	set := w.nft(t, "", "list", "set", "inet", "witness", "seen")
	w.nft(t, "", "flush", "set", "inet", "witness", "seen")
	_, elements, _ := strings.Cut(set, "elements = {")
	for element := range strings.SplitSeq(elements, ",") {
		key, _, ok := strings.Cut(element, " counter ")
		if ok {
			packets = append(packets, strings.Split(strings.TrimSpace(key), " . "))
		}
	}
	return packets
}

// sources looks at packets that the VPC drops as forged while pods with Services, host ports and callers come and go,
// and their node reboots. All of them are packets of others for deleted pods, which the node routes back to the VPC.
func sources(t *testing.T, w *world) {
	w.nft(t, witness, "-f", "-")
	defer w.nft(t, "", "delete", "table", "inet", "witness")

	// More than the primary ENI has addresses for.
	pods := w.makePods(t, "many", brokenNode, 10)
	hostPort := plainPod("host-port", brokenNode)
	hostPort.Spec.Containers[0].Args = []string{"netexec", fmt.Sprintf("--http-port=%d", webPort)}
	hostPort.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: webPort, HostPort: 31000}}
	harness.OK(t, w.Kube.Client.Create(t.Context(), hostPort))
	w.podReady(t, append(pods, hostPort.Name)...)
	var gone []netip.Addr
	for _, name := range pods {
		p := &corev1.Pod{}
		harness.OK(t, w.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: inDefault, Name: name}, p))
		gone = append(gone, netip.MustParseAddr(p.Status.PodIP))
	}
	var script strings.Builder // calls all addresses, as one who does not know that the pods are gone
	for _, a := range gone {
		fmt.Fprintf(&script, "curl -s -o /dev/null -m 1 http://%s & ", netip.AddrPortFrom(a, webPort))
	}
	script.WriteString("wait; true")
	callAll := []string{"exec", clientName, "--", "sh", "-c", script.String()}
	w.underCalls(t, func() {
		w.removePods(t, pods...)
		w.kubectl(t, callAll...)
		w.kubectl(t, "rollout", "restart", "deployment/"+webName)
		harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, soon), inDefault, webName))
	})
	w.sentBack(t, "while pods come and go")

	pods = w.makePods(t, "again", brokenNode, 10)
	w.podReady(t, pods...)
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() { // the pods' addresses all the time
		defer close(asked)
		for ctx.Err() == nil {
			_, _ = w.Kube.Kubectl(ctx, callAll...)
			_ = poll.Pause(ctx, time.Now(), 100*time.Millisecond)
		}
	}()
	harness.OK(t, w.Reboot(t.Context(), brokenNode))
	harness.OK(t, w.Kube.WaitNodesReady(harness.Deadline(t, soon), w.Nodes()...))
	w.podReady(t, pods...)
	stop()
	<-asked
	w.sentBack(t, "while the node boots")
	w.removePods(t, append(pods, hostPort.Name)...)
	w.rest(t)
}

// sentBack checks that packets which the VPC dropped for their source are for addresses of nodes.
func (w *world) sentBack(t *testing.T, while string) {
	t.Helper()
	packets := w.forged(t)
	var enis []vpc.ENI
	for _, n := range w.Nodes() {
		enis = append(enis, w.Snapshot().InstanceENIs(n.InstanceID)...)
	}
	t.Logf("%d packets that the VPC drops for their source %s", len(packets), while)
	for _, p := range packets {
		to, err := netip.ParseAddr(p[1])
		if err != nil || !slices.ContainsFunc(enis, func(e vpc.ENI) bool { return e.Owns(to) }) {
			t.Errorf("%v is for no address of a node: %v", p, err)
		}
	}
}
