package harness

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// enter runs berthd like a runtime runs a container: with a read-only root directory, the listed mounts, a read-only
// /proc/sys, and a bounding set of capabilities. Programs and libraries are the machine's; there is no seccomp
// profile.
const enter = `#!/bin/sh
exec unshare --mount --propagation slave sh -ec '
	dir=$1 program=$2
	shift 2
	root=$dir/root
	mount -t tmpfs -o mode=755 tmpfs "$root"
	for d in usr bin sbin lib lib64; do
		if [ -L "/$d" ]; then
			cp -P "/$d" "$root/$d"
		elif [ -d "/$d" ]; then
			mkdir "$root/$d"
			mount --rbind "/$d" "$root/$d"
		fi
	done
	mkdir "$root/dev" "$root/proc"
	touch "$root/dev/null"
	mount --bind /dev/null "$root/dev/null"
	mount --rbind /proc "$root/proc"
	mount --bind /proc/sys "$root/proc/sys"
	mount -o remount,bind,ro "$root/proc/sys"
	while read -r from to propagation mode; do
		mkdir -p "$root$to"
		mount --rbind "$from" "$root$to"
		mount "--make-$propagation" "$root$to"
		[ "$mode" != ro ] || mount -o remount,bind,ro "$root$to"
	done <"$dir/mounts"
	mount -o remount,bind,ro "$root"
	exec chroot "$root" setpriv --bounding-set "$(cat "$dir/capabilities")" "$program" "$@"
' enter %s %s "$@"
`

// Container runs berthd on a lab's nodes like the chart's DaemonSet does: unprivileged, with a few capabilities and
// the host directories that the chart mounts.
type Container struct {
	of   corev1.Container // with the chart's default values
	dirs []string         // one per node
}

// RaiseContained is RaiseQuick with berthd in containers. Mounts of network namespaces must propagate to containers,
// like on a machine with systemd.
func RaiseContained(t *testing.T, m lab.Mode, o lab.Options) (*lab.Lab, *Container) {
	t.Helper()
	const netns = "/run/netns"
	// This must come before the first namespace of any test.
	if err := unix.Mount("", netns, "", unix.MS_SHARED, ""); err != nil {
		t.Fatalf("%s is not a separate mount: run this in hack/sandbox.sh, as make test does: %v", netns, err)
	}
	dir, err := os.MkdirTemp("", "contained-")
	OK(t, err)
	t.Cleanup(func() { OK(t, os.RemoveAll(dir)) })
	o.NoDaemons = true
	l, c := RaiseQuick(t, m, o), &Container{}
	for _, n := range l.Nodes() {
		c.contain(t, l, n, filepath.Join(dir, n.Name))
	}
	c.Allow(t, c.Capabilities()...)
	for _, operator := range l.Operators() {
		OK(t, operator.Start())
	}
	for _, n := range l.Nodes() {
		OK(t, n.Start())
	}
	ctx := Deadline(t, Patience)
	OK(t, l.WaitReady(ctx))
	if l.Ports != nil {
		OK(t, l.Kube.WaitVPCs(ctx))
	}
	return l, c
}

// contain makes a node's berthd run in a container from its next start.
func (c *Container) contain(t *testing.T, l *lab.Lab, n *node.Node, dir string) {
	t.Helper()
	OK(t, os.MkdirAll(filepath.Join(dir, "root"), 0o755))
	c.dirs = append(c.dirs, dir)
	pod := chartPod(t, l, n)
	c.of = pod.Containers[0]
	if s := c.of.SecurityContext; s.Privileged != nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !*s.ReadOnlyRootFilesystem || !pod.HostNetwork {
		t.Fatalf("unsupported security context %+v or host network %t", s, pod.HostNetwork)
	}
	mounts := hostMounts(t, pod)
	// Directories of the image, and the service account's token.
	own := []string{dir, BinDir}
	if kube := filepath.Join(n.Dir, "etc", "kubernetes"); l.Kube != nil {
		own = append(own, kube)
	}
	for _, folder := range own {
		mounts += folder + " " + folder + " rprivate\n"
	}
	program := filepath.Join(dir, "berthd")
	for name, content := range map[string]string{"mounts": mounts, "berthd": fmt.Sprintf(enter, dir, filepath.Join(BinDir, "berthd"))} {
		OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	OK(t, errors.Join(os.Chmod(program, 0o700), os.Symlink(filepath.Join(BinDir, "berth"), filepath.Join(dir, "berth"))))
	n.BinDir, n.Env = dir, maps.Clone(n.Env)
	if n.Env == nil {
		n.Env = map[string]string{}
	}
	for _, e := range c.of.Env {
		if e.Name == "BERTH_SYSCTL_DIR" { // the lab sets the rest with flags
			n.Env[e.Name] = e.Value
		}
	}
}

// chartPod returns berthd's pod in the chart, with the directories of a lab's node.
func chartPod(t *testing.T, l *lab.Lab, n *node.Node) corev1.PodSpec {
	t.Helper()
	settings := map[string]any{
		"state-dir": n.StateDir(), "socket": n.Socket(), "cni-bin-dir": n.CNIBinDir(), "cni-conf-dir": n.ConfDir(), "aws-node-dir": n.AWSNodeDir(), "cri-socket": nil,
	}
	for _, arg := range n.Args {
		if ovsdb, ok := strings.CutPrefix(arg, "--ovsdb="); ok {
			settings["ovsdb"] = ovsdb
		}
	}
	r := deploy.InMode(string(l.Mode), "lab")
	if l.VPCPorts {
		r.Values["ports"] = map[string]any{"enabled": true}
	}
	r.Values["daemon"] = map[string]any{"settings": settings}
	objects, err := deploy.Render(r)
	OK(t, err)
	d, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
	OK(t, err)
	return d.Spec.Template.Spec
}

// hostMounts returns the mounts of a pod's container, all from the host: a line each with source, target,
// propagation and, if it is read-only, "ro".
func hostMounts(t *testing.T, pod corev1.PodSpec) (lines string) {
	t.Helper()
	for _, m := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || pod.Volumes[i].HostPath == nil {
			t.Fatalf("unsupported mount %+v of volumes %+v", m, pod.Volumes)
		}
		propagation := "rprivate" // the kubelet's default (corev1.MountPropagationNone)
		if p := m.MountPropagation; p != nil && *p == corev1.MountPropagationHostToContainer {
			propagation = "rslave"
		}
		mode := ""
		if m.ReadOnly {
			mode = " ro"
		}
		host := pod.Volumes[i].HostPath
		if *host.Type == corev1.HostPathDirectoryOrCreate {
			OK(t, os.MkdirAll(host.Path, 0o755))
		}
		lines += host.Path + " " + m.MountPath + " " + propagation + mode + "\n"
	}
	return lines
}

// Capabilities returns the capabilities of the chart's container.
func (c *Container) Capabilities() []corev1.Capability {
	return slices.Clone(c.of.SecurityContext.Capabilities.Add)
}

// Without hides a mounted directory from berthd on all nodes from its next start, until restore is called.
func (c *Container) Without(t *testing.T, folder string) (restore func()) {
	t.Helper()
	was := map[string][]byte{}
	for _, dir := range c.dirs {
		file := filepath.Join(dir, "mounts")
		text, err := os.ReadFile(file)
		OK(t, err)
		was[file] = text
		left := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(line string) bool { return strings.Contains(line, " "+folder+" ") })
		OK(t, os.WriteFile(file, []byte(strings.Join(left, "")), 0o600)) //nolint:gosec // a file of the test's own folder
		if strings.Join(left, "") == string(text) {
			t.Fatalf("%s is not mounted: %s", folder, text)
		}
	}
	return func() {
		for file, text := range was {
			OK(t, os.WriteFile(file, text, 0o600))
		}
	}
}

// Allow sets the capabilities of berthd from its next start.
func (c *Container) Allow(t *testing.T, capabilities ...corev1.Capability) {
	t.Helper()
	set := "-all" // in the syntax of setpriv(1)
	for _, one := range capabilities {
		set += ",+" + strings.ToLower(string(one))
	}
	for _, dir := range c.dirs {
		OK(t, os.WriteFile(filepath.Join(dir, "capabilities"), []byte(set), 0o600))
	}
}
