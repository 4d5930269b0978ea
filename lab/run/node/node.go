// Package node simulates one machine of the lab without a kubelet: a network namespace, a directory tree for the files that
// are usually in /run, /etc and /opt, a real berthd process, and pods that are created and deleted through libcni and the
// real plugin binary, as by a container runtime.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/proc"
)

// Options describe a node.
type Options struct {
	Name       string
	InstanceID string
	Netns      string // path of its network namespace, which the caller creates
	Dir        string // its directory tree; an absolute path
	BinDir     string // directory of berthd and berth
	PodPrefix  string // prefix of the names of its pods' namespaces
	Cluster    string // --cluster-name of its daemon
	EC2URL     string // --ec2-endpoint of its daemon; empty: it does not call EC2
	Args       []string
	Env        map[string]string
	Objects    PodObjects // nil: its pods have no API objects
	Log        *slog.Logger
}

// Node is one machine. It is safe for concurrent use. The process is its daemon.
type Node struct {
	Options
	*proc.Process
	cni    *libcni.CNIConfig
	mounts *pluginMounts

	mu     sync.Mutex      // guards all below; never held across I/O
	pods   map[string]*Pod // by name, including those that are being added or deleted
	server *echo.Server    // nil until Serve
}

// pluginDirs are the directories with the reference plugins for chained networks.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// maxSocketPath is the maximum length of a Unix socket's path (unix(7): 108 with the final zero).
const maxSocketPath = 107

// New creates a node's missing directories, and links the reference plugins. It does not start the daemon.
func New(o Options) (*Node, error) {
	n := &Node{Options: o, pods: map[string]*Pod{}, mounts: &pluginMounts{byName: map[string]func() string{}}}
	n.Process = proc.New("berthd of "+o.Name, filepath.Join(o.Dir, "log", "berthd.log"), n.berthd)
	if s := n.Socket(); len(s) > maxSocketPath {
		return nil, fmt.Errorf("node %s: the socket path %s has %d characters, but the kernel supports %d: use a shorter lab directory", o.Name, s, len(s), maxSocketPath)
	}
	for _, d := range []string{n.StateDir(), n.ConfDir(), n.CNIBinDir(), n.cacheDir(), filepath.Dir(n.LogFile())} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("node %s: %w", o.Name, err)
		}
	}
	if err := n.linkPlugins(); err != nil {
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	n.cni = n.Runtime(n.cacheDir())
	return n, nil
}

// StateDir contains the daemon's records, like /run/berth.
func (o *Options) StateDir() string { return filepath.Join(o.Dir, "run", "berth") }

// AWSNodeDir has the checkpoint of the Amazon VPC CNI, like /run/aws-node, if a test puts one there.
func (o *Options) AWSNodeDir() string { return filepath.Join(o.Dir, "run", "aws-node") }

// Socket is the path of the daemon's socket for the plugin.
func (o *Options) Socket() string { return filepath.Join(o.StateDir(), "berthd.sock") }

// ConfDir contains the CNI configuration, like /etc/cni/net.d.
func (o *Options) ConfDir() string { return filepath.Join(o.Dir, "etc", "cni", "net.d") }

// CNIBinDir contains the plugins, like /opt/cni/bin.
func (o *Options) CNIBinDir() string { return filepath.Join(o.Dir, "opt", "cni", "bin") }

func (o *Options) cacheDir() string { return filepath.Join(o.Dir, "var", "lib", "cni") }

// linkPlugins makes the machine's reference plugins, if any, available to this node.
func (o *Options) linkPlugins() error {
	for _, dir := range pluginDirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list reference plugins: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() || e.Name() == "berth" {
				continue
			}
			err := os.Symlink(filepath.Join(dir, e.Name()), filepath.Join(o.CNIBinDir(), e.Name()))
			if err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("link reference plugin: %w", err)
			}
		}
	}
	return nil
}

// Pods returns the running pods, sorted by name.
func (n *Node) Pods() []*Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*Pod
	for _, name := range slices.Sorted(maps.Keys(n.pods)) {
		if p := n.pods[name]; p.up {
			out = append(out, p)
		}
	}
	return out
}

// Pod returns a running pod.
func (n *Node) Pod(name string) (*Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[name]; p != nil && p.up {
		return p, nil
	}
	return nil, fmt.Errorf("node %s has no pod %s", n.Name, name)
}

// PowerOff is a power failure: the daemon, the pods and the files under run are lost.
func (n *Node) PowerOff() error {
	errs := []error{n.Kill()}
	n.mu.Lock()
	pods := slices.Collect(maps.Values(n.pods))
	clear(n.pods)
	server := n.server
	n.server = nil
	n.mu.Unlock()
	if server != nil {
		errs = append(errs, server.Close())
	}
	for _, p := range pods {
		errs = append(errs, p.vanish())
	}
	if err := os.RemoveAll(filepath.Join(n.Dir, "run")); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, os.MkdirAll(n.StateDir(), 0o755))
	}
	return errors.Join(errs...)
}

// RemoveDisk removes the node's disk except its logs.
func (n *Node) RemoveDisk() error {
	var errs []error
	for _, d := range []string{"run", "etc", "opt", "var"} {
		errs = append(errs, os.RemoveAll(filepath.Join(n.Dir, d)))
	}
	return errors.Join(errs...)
}

// Serve starts the node's own echo server, once its namespace has a network.
func (n *Node) Serve() error {
	s, err := echo.Serve(n.Netns)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server = s
	return nil
}

// Ask sends a message from the node itself to an echo server.
func (n *Node) Ask(ctx context.Context, network string, to netip.Addr, text string) (echo.Reply, error) {
	return echo.Ask(ctx, n.Netns, network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, text)
}

// Addresses of the daemon in its node's namespace, which are its defaults.
const (
	IntrospectionURL = "http://127.0.0.1:6666/ip-manager"
	ReadyURL         = "http://127.0.0.1:61678/readyz"
	MetricsURL       = "http://127.0.0.1:61678/metrics"
)

// berthd returns the command of the daemon with the node's current settings.
func (n *Node) berthd() proc.Command {
	return proc.Command{
		Path: filepath.Join(n.BinDir, "berthd"), Args: n.daemonArgs(), Env: n.daemonEnv(), Netns: n.Netns,
	}
}

func (o *Options) daemonArgs() []string {
	args := []string{
		"--node-name=" + o.Name,
		"--cluster-name=" + o.Cluster,
		"--state-dir=" + o.StateDir(),
		"--socket=" + o.Socket(),
		"--install-cni",
		"--cni-bin-dir=" + o.CNIBinDir(),
		"--cni-conf-dir=" + o.ConfDir(),
		"--aws-node-dir=" + o.AWSNodeDir(),
		"--cni-plugin=" + filepath.Join(o.BinDir, "berth"),
	}
	if o.EC2URL != "" {
		args = append(args, "--ec2-endpoint="+o.EC2URL)
	}
	return append(args, o.Args...)
}

func (o *Options) daemonEnv() []string {
	var env []string
	for k, v := range o.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

// WaitReady waits until pods can be added: the CNI configuration is installed, and the daemon is ready. An error contains
// the end of the daemon's log.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.Wait(ctx, func() error {
		if _, err := n.conf(); err != nil {
			return err
		}
		_, err := n.Get(ctx, ReadyURL)
		return err
	})
}

// Get fetches a URL with a literal address from inside the node. It fails unless the status is 200, and returns the body
// in any case.
func (n *Node) Get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return ns.Get(ctx, n.Netns, url)
}
