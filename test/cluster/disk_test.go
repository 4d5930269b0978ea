//go:build e2e

package cluster

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/test/harness"
)

// sh runs a shell script on a machine, with its mounts and its network.
func sh(t *testing.T, h *host.Host, script string) string {
	t.Helper()
	out, err := h.Run(t.Context(), "sh", "-ec", script)
	harness.OK(t, err)
	return out
}

// restartDaemon replaces the pod of berthd on a node.
func (w *world) restartDaemon(t *testing.T, node string) {
	t.Helper()
	old, err := w.daemon(t.Context(), node)
	harness.OK(t, err)
	w.kubectl(t, "delete", "pod", old.Name, "--namespace="+addons.Namespace)
	harness.Eventually(t, soon, "another berthd runs on "+node, func() error {
		p, err := w.daemon(t.Context(), node)
		if err == nil && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil) {
			return notYet(p.Status.Phase)
		}
		return err
	})
}

// fullState fills the folder of records on a node: pods can be deleted, and new ones wait until there is space.
func fullState(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	there := w.makePods(t, "before-full", brokenNode, 1)
	w.podReady(t, there...)
	// The folder becomes a small file system of its own, seen by the next berthd.
	sh(t, h, `cp -a /run/berth /run/berth.was; mount -t tmpfs -o size=1m tmpfs /run/berth; cp -a /run/berth.was/. /run/berth/`)
	w.restartDaemon(t, brokenNode)
	w.rest(t)
	sh(t, h, `dd if=/dev/zero of=/run/berth/fill bs=4096 2>/dev/null || true`)

	waits := w.makePods(t, "full", brokenNode, 1)
	w.shows(t, []string{"the attachment's record could not be written"}, "describe", "pod", waits[0])
	daemon, err := w.daemon(t.Context(), brokenNode)
	harness.OK(t, err)
	w.shows(t, []string{"RecordsWritable", "NoSpace"}, "exec", daemon.Name, "--namespace="+addons.Namespace, "--", "/berthctl", "status")
	if ready, why, err := w.nodeReady(t.Context(), brokenNode); err != nil || !ready {
		t.Errorf("the node is not Ready: %s, %v", why, err)
	}
	w.removePods(t, there...) // also without room

	sh(t, h, `rm /run/berth/fill`)
	w.podReady(t, waits...)
	w.rest(t)
	sh(t, h, `rm -rf /run/berth.was; cp -a /run/berth /run/berth.was; umount -l /run/berth; rm -rf /run/berth/*; cp -a /run/berth.was/. /run/berth/; rm -rf /run/berth.was`)
	w.restartDaemon(t, brokenNode)
	w.rest(t)
	w.removePods(t, waits...)
}

// fullPlugins leaves no space for the plugin: pods wait until there is some.
func fullPlugins(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	sh(t, h, `mkdir /run/plugins; cp /opt/cni/bin/loopback /run/plugins/; mount -t tmpfs -o size=64k tmpfs /opt/cni/bin; ln -s /run/plugins/loopback /opt/cni/bin/`)
	w.restartDaemon(t, brokenNode)
	waits := w.makePods(t, "no-plugin", brokenNode, 1)
	described := w.shows(t, []string{`failed to find plugin "berth"`}, "describe", "pod", waits[0])
	daemon, err := w.daemon(t.Context(), brokenNode)
	harness.OK(t, err)
	said := w.shows(t, []string{"PluginInstalled", "no space left on device"}, "logs", daemon.Name, "--namespace="+addons.Namespace)
	t.Logf("%s\n%s", lastLines(described, 6), lastLines(said, 4))

	sh(t, h, `mount -o remount,size=256m /opt/cni/bin`)
	w.podReady(t, waits...)
	w.rest(t)
	sh(t, h, `umount -l /opt/cni/bin; rm -r /run/plugins`)
	w.restartDaemon(t, brokenNode)
	w.rest(t)
	w.removePods(t, waits...)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
