package labs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/test/harness"
)

// TestChartCapabilitiesSuffice runs berthd with the capabilities and mounts of the chart, and with the
// node's sysctls mounted elsewhere than /proc/sys. For ports of VPCs see test/ports.
func TestChartCapabilitiesSuffice(t *testing.T) {
	pools := map[lab.Mode][]v1alpha1.AddressPool{
		lab.PoolMode: {lab.Pool(v1alpha1.DefaultPool, 3, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/24", IPv6: "fd00::/120"})},
	}
	for _, mode := range []lab.Mode{lab.NodeMode, lab.PoolMode} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == lab.PoolMode {
				harness.Rotate(t, 9)
			}
			l, _ := harness.RaiseContained(t, mode, lab.Options{Nodes: 1, InstanceType: "t3.small", Pools: pools[mode], DaemonArgs: prompt})
			n := l.Nodes()[0]
			pods := 3
			if mode == lab.NodeMode {
				pods = 5 // more than the primary ENI of a t3.small has room for
			}
			for i := range pods {
				harness.Add(t, n, fmt.Sprintf("p%d", i))
			}
			harness.OK(t, n.CheckPod(harness.Deadline(t, patience), "p0"))
			harness.Restart(t, n)
			harness.Settle(t, l)
			harness.RemoveAll(t, n)
			harness.Settle(t, l)
		})
	}
}

// TestEachChartCapabilityIsNeeded removes one capability at a time, and uses the container's read-only
// /proc/sys. Each time something is refused.
func TestEachChartCapabilityIsNeeded(t *testing.T) {
	l, container := harness.RaiseContained(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: prompt})
	n := l.Nodes()[0]
	for _, tt := range []struct {
		without corev1.Capability
		args    []string
		says    string
	}{
		{"NET_ADMIN", nil, "operation not permitted"},
		{"SYS_ADMIN", nil, "operation not permitted"},
		{"NET_RAW", nil, "operation not permitted"},
		{"", []string{"--sysctl-dir=/proc/sys"}, "read-only file system"},
	} {
		harness.OK(t, n.Kill())
		container.Allow(t, slices.DeleteFunc(container.Capabilities(), func(c corev1.Capability) bool { return c == tt.without })...)
		harness.OK(t, ns.Do(n.Netns, func() error { // something to set, and a policy to read
			return errors.Join(ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "0"}),
				exec.Command("iptables-legacy", "-P", "FORWARD", "ACCEPT").Run())
		}))
		begun, err := os.Stat(n.LogFile())
		harness.OK(t, err)
		harness.OK(t, n.Start(tt.args...))
		harness.Eventually(t, patience, fmt.Sprintf("without %s, %v: %s", tt.without, tt.args, tt.says), func() error {
			text, err := os.ReadFile(n.LogFile())
			if err != nil || !strings.Contains(string(text[begun.Size():]), tt.says) {
				return errors.Join(errors.New(n.LogTail(20)), err)
			}
			return nil
		})
	}
}
