//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// containersConf makes podman use CNI (its own netavark is the default since
// 4.0) with the plugins and configurations of a node (containers.conf(5)).
const containersConf = `[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
[containers]
default_ulimits = []
`

// podman runs containers on a node.
type podman struct {
	node  *node.Node
	dir   string
	state string // its state, at a path of at most 50 characters (podman's limit)
}

// newPodman prepares podman on a node. Its containers and storage are removed when the test ends.
func newPodman(t *testing.T, n *node.Node) podman {
	t.Helper()
	state, err := os.MkdirTemp("/run", "podman-") // the sandbox's own
	harness.OK(t, err)
	p := podman{node: n, dir: filepath.Join(n.Dir, "podman"), state: state}
	harness.OK(t, os.MkdirAll(p.dir, 0o755))
	harness.OK(t, os.WriteFile(p.config(), fmt.Appendf(nil, containersConf, n.CNIBinDir(), n.ConfDir()), 0o644))
	image, err := pauseImage()
	harness.OK(t, err)
	archive := filepath.Join(p.dir, "pause.tar")
	harness.OK(t, os.WriteFile(archive, image, 0o644))
	t.Cleanup(func() {
		defer os.RemoveAll(p.state)
		for _, args := range [][]string{{"rm", "--all", "--force", "--time=0"}, {"image", "rm", "--all", "--force"}} {
			if _, err := p.run(context.Background(), args...); err != nil {
				t.Error(err)
			}
		}
	})
	_, err = p.run(harness.Deadline(t, patience), "load", "--input", archive)
	harness.OK(t, err)
	return p
}

func (p podman) config() string { return filepath.Join(p.dir, "containers.conf") }

// run runs podman in the node's network namespace and returns what it prints.
func (p podman) run(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--root", filepath.Join(p.dir, "root"), "--runroot", p.state,
		"--tmpdir", filepath.Join(p.state, "tmp"), "--storage-driver=vfs"}, args...)
	cmd := exec.CommandContext(ctx, "podman", args...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+p.config())
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := ns.Do(p.node.Netns, cmd.Start); err != nil {
		return "", fmt.Errorf("start podman: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("podman %s: %w\n%s", strings.Join(args[7:], " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (p podman) start(t *testing.T, name string) string {
	t.Helper()
	id, err := p.run(harness.Deadline(t, patience), "run", "--detach", "--pull=never", "--name", name, "--network", networkName,
		"--cgroup-parent", "/"+string(tree)+"/podman", pauseImageName)
	harness.OK(t, err)
	return id
}

// networkName is berthd's default for --cni-network.
const networkName = "berth"

// TestPodmanContainersHaveVPCAddresses runs containers of podman, which uses libcni like CRI-O. Each
// has an address of the VPC, is reached from another node, and releases the address when it is
// removed.
func TestPodmanContainersHaveVPCAddresses(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 2, DaemonArgs: []string{"--log-level=debug", "--cooling-period=" + cooling.String()}})
	nodes := l.Nodes()
	for _, n := range nodes {
		harness.Ready(t, n)
	}
	p := newPodman(t, nodes[0])
	ids := []string{p.start(t, "first"), p.start(t, "second")}
	var addrs []netip.Addr
	for _, id := range ids {
		text, err := p.run(harness.Deadline(t, patience), "inspect", "--format", "{{(index .NetworkSettings.Networks \""+networkName+"\").IPAddress}}", id)
		harness.OK(t, err)
		addr, err := netip.ParseAddr(text)
		harness.OK(t, err)
		addrs = append(addrs, addr)
		if eni, ok := owner(l.Snapshot(), nodes[0], addr); !ok || eni.Primary == addr {
			t.Errorf("container %s has %s, which is no secondary address of its node at EC2", id, addr)
		}
		var reply echo.Reply
		harness.Eventually(t, patience, "the container answers another node", func() (err error) {
			reply, err = nodes[1].Ask(t.Context(), "tcp", addr, "hello")
			return err
		})
		if reply.You != harness.PrimaryAddress(t, l, nodes[1]) || reply.To != addr {
			t.Errorf("asked %s from %s, and it says %v", addr, nodes[1].Name, reply)
		}
	}
	if addrs[0] == addrs[1] {
		t.Errorf("both containers have %s", addrs[0])
	}

	_, err := p.run(harness.Deadline(t, patience), "rm", "--force", "--time=0", ids[0])
	harness.OK(t, err)
	doc := harness.Document(t, nodes[0])
	if len(doc.Allocated) != 1 || doc.Allocated[0].Address != addrs[1] || doc.Allocated[0].ContainerID != ids[1] {
		t.Errorf("one container is left, the daemon says %+v", doc.Allocated)
	}
	if !cools(doc, addrs[0]) {
		t.Errorf("%s of the removed container does not cool: %+v", addrs[0], doc.Cooling)
	}

	// The daemon is restarted under a container, which is removed then.
	harness.OK(t, nodes[0].Kill())
	harness.OK(t, nodes[0].Start())
	harness.Ready(t, nodes[0])
	if reply, err := nodes[1].Ask(t.Context(), "tcp", addrs[1], "still there"); err != nil || reply.To != addrs[1] {
		t.Errorf("after a restart of the daemon: %v, %v", reply, err)
	}
	_, err = p.run(harness.Deadline(t, patience), "rm", "--force", "--time=0", ids[1])
	harness.OK(t, err)
	harness.Shows(t, nodes[0], "both addresses have cooled", func(doc introspect.Document) error {
		return harness.Equal("addresses in use or cooling", doc.Totals.Cooling+doc.Totals.Allocated, 0)
	})
	if links, err := podLinks(nodes[0]); err != nil || len(links) > 0 {
		t.Errorf("links left: %v (%v)", slices.Sorted(slices.Values(links)), err)
	}
	harness.Settle(t, l)
}
