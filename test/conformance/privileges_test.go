package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/test/harness"
)

// container does to berthd what a runtime does to a container that has
// capabilities only: a mount namespace which gets the node's mounts, /proc/sys
// read-only, the node's net of it at another place, and a bounding set.
const container = `#!/bin/sh
exec unshare --mount --propagation slave sh -ec '
	capabilities=$1 sysctls=$2 program=$3
	shift 3
	mkdir -p "$sysctls/net"
	mount --bind /proc/sys/net "$sysctls/net"
	mount --bind /proc/sys /proc/sys
	mount -o remount,bind,ro /proc/sys
	exec setpriv --bounding-set "$capabilities" "$program" "$@"
' container "$(cat %[1]s/capabilities)" %[1]s/sysctls %[2]s/berthd "$@"
`

// contained is a folder with the programs, of which berthd runs in a container
// with capabilities, as setpriv writes them.
func contained(t *testing.T, capabilities string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "contained-")
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, os.RemoveAll(dir)) })
	harness.OK(t, os.WriteFile(filepath.Join(dir, "capabilities"), []byte(capabilities), 0o600))
	harness.OK(t, os.WriteFile(filepath.Join(dir, "berthd"), fmt.Appendf(nil, container, dir, harness.BinDir), 0o700))
	for _, program := range []string{"berth", "berth-operator"} {
		harness.OK(t, os.Symlink(filepath.Join(harness.BinDir, program), filepath.Join(dir, program)))
	}
	return dir
}

// needSharedNamespaces wants that mounts in the folder of network namespaces
// propagate, as on a machine with systemd: they reach containers then. It must have
// been so before the first namespace, whosever, is there.
func needSharedNamespaces(t *testing.T) {
	t.Helper()
	const dir = "/run/netns"
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatalf("%s is no mount of its own: run this in hack/sandbox.sh, as make test does: %v", dir, err)
	}
}

// bounding is what the chart's container may have, without some.
func bounding(t *testing.T, without ...corev1.Capability) string {
	t.Helper()
	objects, err := deploy.Render(deploy.InMode(deploy.NodeMode, "lab"))
	harness.OK(t, err)
	d, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
	harness.OK(t, err)
	of := d.Spec.Template.Spec.Containers[0].SecurityContext
	if of.Privileged != nil || !slices.Equal(of.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Fatalf("security context %+v", of)
	}
	set := "-all"
	for _, c := range of.Capabilities.Add {
		if !slices.Contains(without, c) {
			set += ",+" + strings.ToLower(string(c))
		}
	}
	return set
}

// berthd does all that it is for with the capabilities that the chart gives it, and
// the node's sysctls at another place than /proc/sys.
func TestCapabilitiesOfTheChartSuffice(t *testing.T) {
	pools := map[lab.Mode][]v1alpha1.AddressPool{
		lab.PoolMode: {lab.Pool(v1alpha1.DefaultPool, 3, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/24", IPv6: "fd00::/120"})},
	}
	for _, mode := range []lab.Mode{lab.NodeMode, lab.PoolMode} {
		t.Run(string(mode), func(t *testing.T) {
			needSharedNamespaces(t)
			dir := contained(t, bounding(t))
			l := harness.RaiseQuick(t, mode, lab.Options{
				Nodes: 1, InstanceType: "t3.small", BinDir: dir, Pools: pools[mode], DaemonArgs: append(slices.Clone(prompt), "--sysctl-dir="+dir+"/sysctls"),
			})
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

// Without any of them, or with /proc/sys as a container has it, something is refused.
func TestEachCapabilityOfTheChartIsNeeded(t *testing.T) {
	needSharedNamespaces(t)
	dir := contained(t, bounding(t))
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{
		Nodes: 1, InstanceType: "t3.small", BinDir: dir, DaemonArgs: append(slices.Clone(prompt), "--sysctl-dir="+dir+"/sysctls"),
	})
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
		harness.OK(t, os.WriteFile(filepath.Join(dir, "capabilities"), []byte(bounding(t, tt.without)), 0o600))
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
