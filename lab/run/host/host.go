// Package host is a whole machine of the lab: a real containerd, kubelet and kube-proxy in a network namespace created by
// the caller, with its own files, cgroups and kernel settings. It can be powered on, join a cluster, be shut down or lose
// power, and boot again from its disk. Its parts are in separate files: mounts.go, containerd.go, kubelet.go.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/proc"
)

// Options describe a machine.
type Options struct {
	Name  string
	Netns string // path of its network namespace, which the caller creates
	Group cgroup.Group
	Disk  string // directory of its disk, on a file system that supports overlays
	Logs  string // directory of its programs' logs

	Kubernetes string     // directory of kubelet and kube-proxy; hack/kubebox.sh prints one
	Runtime    Containerd // its container runtime
	Images     []Archive  // archives to import at the first boot
	CNIPlugins string     // directory of the reference plugins, such as /usr/lib/cni; empty: none
	// Folders maps mount points in the machine to directories of the host, such as one with the sockets of a daemon next
	// to the machine. They must exist when it boots.
	Folders map[string]string
}

// Host is a machine. It is safe for concurrent use.
type Host struct {
	Options
	// Programs. Each can be started and stopped any number of times while the machine is on.
	Containerd, Kubelet, Proxy *proc.Process

	turning sync.Mutex // held while it is powered on or off

	mu      sync.Mutex // guards all below; never held across I/O
	mounts  *os.File   // its mount namespace while it is on
	cluster *Cluster   // the cluster that it has joined, or nil
}

// New returns a machine that is off.
func New(o Options) *Host {
	h := &Host{Options: o}
	h.Containerd = h.program("containerd", containerdCommand)
	h.Kubelet = h.program("kubelet", h.kubeletCommand)
	h.Proxy = h.program("kube-proxy", proxyCommand)
	return h
}

func (h *Host) program(name string, command func() proc.Command) *proc.Process {
	return proc.New(name+" of "+h.Name, filepath.Join(h.Logs, name+".log"), func() proc.Command {
		c := command()
		c.Netns, c.Mounts, c.Cgroups = h.Netns, h.MountsPath(), h.joined()
		return c
	})
}

func (o Options) disk() disk { return disk(o.Disk) }

// ownGroup is the cgroup of the machine's own programs, next to the kubelet's cgroups for pods: version 2 requires
// processes to be in leaves.
func (o Options) ownGroup() cgroup.Group { return o.Group + "/system" }

// joined returns the cgroup directories in which programs are started.
func (o Options) joined() []string {
	dirs, _ := o.ownGroup().Directories() // Boot has listed them
	return dirs
}

// MountsPath returns the path of the machine's mount namespace, or "" if it is off.
func (h *Host) MountsPath() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mounts == nil {
		return ""
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.mounts.Fd())
}

// On reports whether the machine is on.
func (h *Host) On() bool { return h.MountsPath() != "" }

// Boot powers the machine on, and waits until its runtime responds and has its images. A machine that has joined a
// cluster also starts its kubelet and kube-proxy.
func (h *Host) Boot(ctx context.Context) error {
	h.turning.Lock()
	defer h.turning.Unlock()
	if h.On() {
		return fmt.Errorf("%s is already on", h.Name)
	}
	if err := h.boot(ctx); err != nil {
		return errors.Join(fmt.Errorf("boot %s: %w", h.Name, err), h.kill())
	}
	if h.joinedCluster() == nil {
		return nil
	}
	return h.startNode()
}

func (h *Host) boot(ctx context.Context) error {
	if err := os.MkdirAll(h.Logs, 0o755); err != nil {
		return err
	}
	if err := h.disk().format(); err != nil {
		return err
	}
	if err := h.installPlugins(); err != nil {
		return err
	}
	for _, g := range []cgroup.Group{h.Group, h.ownGroup()} {
		if err := g.Create(); err != nil {
			return err
		}
	}
	if err := ns.Do(h.Netns, forward); err != nil {
		return err
	}
	seen := map[string]string{programsDir + "/kubernetes": h.Kubernetes, programsDir + "/containerd": h.Runtime.Dir}
	maps.Copy(seen, h.Folders)
	mounts, err := boot(h.disk(), seen)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.mounts = mounts
	h.mu.Unlock()
	return h.startContainerd(ctx)
}

// forward enables forwarding in the calling thread's namespace. Links keep the default route from router
// advertisements, as with network managers (ip-sysctl.rst, accept_ra).
func forward() error {
	const conf = "net/ipv6/conf/"
	links, err := os.ReadDir("/proc/sys/" + conf)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	params := []ns.Sysctl{{Name: "net/ipv4/ip_forward", Value: "1"}}
	for _, l := range links {
		if l.Name() != "all" && l.Name() != "default" {
			params = append(params, ns.Sysctl{Name: conf + l.Name() + "/accept_ra", Value: "2"})
		}
	}
	return ns.SetSysctls(append(params, ns.Sysctl{Name: conf + "all/forwarding", Value: "1"})...)
}

// installPlugins copies the reference plugins to a new machine's disk.
func (o Options) installPlugins() error {
	if o.CNIPlugins == "" {
		return nil
	}
	for _, name := range referencePlugins {
		to := o.disk().path("opt", "cni", "bin", name)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(o.CNIPlugins, name))
		if err == nil {
			err = os.WriteFile(to, data, 0o755) //nolint:gosec // the lab names its disks
		}
		if err != nil {
			return fmt.Errorf("install the CNI plugin %s: %w", name, err)
		}
	}
	return nil
}

// referencePlugins are those that containerd 1.6 (loopback) and chained networks require.
var referencePlugins = []string{"loopback", "portmap", "bandwidth", "host-local", "ptp"}

// Stop shuts the machine down: the kubelet is terminated first, then everything else.
func (h *Host) Stop() error {
	const grace = 10 * time.Second
	err := errors.Join(h.Kubelet.Stop(grace), h.Proxy.Stop(grace))
	return errors.Join(err, h.Kill())
}

// Kill is a power failure: all processes are killed, and only the disk remains. The caller removes the network
// namespace.
func (h *Host) Kill() error {
	h.turning.Lock()
	defer h.turning.Unlock()
	return h.kill()
}

func (h *Host) kill() error {
	errs := []error{h.Kubelet.Kill(), h.Proxy.Kill(), h.Containerd.Kill()}
	errs = append(errs, h.Group.Kill(killPatience))
	h.mu.Lock()
	mounts := h.mounts
	h.mounts = nil
	h.mu.Unlock()
	if mounts != nil {
		errs = append(errs, mounts.Close())
	}
	if err := errors.Join(append(errs, h.Group.Remove())...); err != nil {
		return fmt.Errorf("power off %s: %w", h.Name, err)
	}
	return nil
}

// killPatience is how long the kernel may take to end killed processes.
const killPatience = 30 * time.Second

// RemoveDisk removes the disk of a machine that is off.
func (h *Host) RemoveDisk() error { return os.RemoveAll(h.Disk) }

// Run runs a command on the machine, with its PATH, and returns the output.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	return h.run(ctx, nil, name, args...)
}

func (h *Host) run(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	mounts := h.MountsPath()
	if mounts == "" {
		return "", fmt.Errorf("run %s on %s: the machine is off", name, h.Name)
	}
	var out, errOut bytes.Buffer
	err := proc.Run(ctx, proc.Command{
		Path: "/usr/bin/env", Args: append([]string{name}, args...), Env: []string{"PATH=" + Path}, Netns: h.Netns, Mounts: mounts, Cgroups: h.joined(),
	}, stdin, &out, &errOut)
	if err != nil {
		return out.String(), fmt.Errorf("%s on %s: %w: %s", name, h.Name, err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// Path is the PATH of programs on a machine.
const Path = programsDir + "/containerd:" + programsDir + "/kubernetes:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
