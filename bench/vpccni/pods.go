package vpccni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/node"
)

// retryDelay is the time from a failed ADD to the next attempt with a new sandbox. A kubelet waits longer,
// which would dominate the measurements.
const retryDelay = 250 * time.Millisecond

// pods are the pods of one node, created as by a container runtime.
type pods struct {
	node *node.Node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	// apart means that the plugin runs in another mount namespace, in which the files of new sandboxes are
	// not visible.
	apart  bool
	failed atomic.Int64 // number of failed ADDs

	mu   sync.Mutex // guards all below; never held across I/O
	made int
	left map[string]*os.File // existing sandboxes by name; if not nil, the file by which the plugin reaches it
}

// newPods returns the pods of a node, created with the plugins of a CNI configuration. The plugins run in a
// mount namespace unless its path is empty.
func newPods(n *node.Node, conf, mountNS string) (*pods, error) {
	list, err := libcni.NetworkConfFromFile(conf)
	if err != nil {
		return nil, fmt.Errorf("read the CNI configuration: %w", err)
	}
	in := &inside{netns: n.Netns, mountNS: mountNS}
	return &pods{
		node: n, list: list, apart: mountNS != "", left: map[string]*os.File{},
		cni: libcni.NewCNIConfigWithCacheDir([]string{n.CNIBinDir()}, filepath.Join(n.Dir, "var", "lib", "cni"), in),
	}, nil
}

// sandbox creates the network namespace of a new pod.
func (p *pods) sandbox() *libcni.RuntimeConf {
	p.mu.Lock()
	p.made++
	name := fmt.Sprintf("%s%d", p.node.PodPrefix, p.made)
	p.mu.Unlock()
	must.OK(ns.Create(name))
	path := ns.Path(name)
	var open *os.File
	if p.apart {
		var err error
		if open, err = os.Open(path); err != nil {
			must.OK(errors.Join(err, ns.Remove(name)))
		}
		path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), open.Fd())
	}
	p.mu.Lock()
	p.left[name] = open
	p.mu.Unlock()
	return &libcni.RuntimeConf{
		ContainerID: name, NetNS: path, IfName: "eth0",
		Args: [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", name}},
	}
}

func (p *pods) add(ctx context.Context, rt *libcni.RuntimeConf) error {
	_, err := p.cni.AddNetworkList(ctx, p.list, rt)
	if err != nil {
		p.failed.Add(1)
		return fmt.Errorf("ADD %s: %w", rt.ContainerID, err)
	}
	return nil
}

// del deletes a pod.
func (p *pods) del(ctx context.Context, rt *libcni.RuntimeConf) error {
	if err := p.cni.DelNetworkList(ctx, p.list, rt); err != nil {
		return fmt.Errorf("DEL %s: %w", rt.ContainerID, err)
	}
	return p.remove(rt.ContainerID)
}

func (p *pods) remove(name string) error {
	p.mu.Lock()
	open := p.left[name]
	delete(p.left, name)
	p.mu.Unlock()
	if open != nil {
		_ = open.Close()
	}
	return ns.Remove(name)
}

// serve creates a pod, with as many attempts as necessary, and returns it once it has its network.
func (p *pods) serve(ctx context.Context) *libcni.RuntimeConf {
	for {
		rt := p.sandbox()
		failed := p.add(ctx, rt)
		if failed == nil {
			return rt
		}
		if err := p.del(context.WithoutCancel(ctx), rt); err != nil {
			must.OK(errors.Join(failed, err))
		}
		if !pause(ctx, retryDelay) {
			must.OK(failed)
		}
	}
}

// serveAll creates n pods at once.
func (p *pods) serveAll(ctx context.Context, n int) ([]*libcni.RuntimeConf, error) {
	all := make([]*libcni.RuntimeConf, n)
	err := objects.Each(ctx, n, n, func(ctx context.Context, i int) error {
		all[i] = p.serve(ctx)
		return nil
	})
	return all, err
}

// delAll deletes pods at once.
func (p *pods) delAll(ctx context.Context, all []*libcni.RuntimeConf) {
	must.OK(objects.Each(ctx, len(all), len(all), func(ctx context.Context, i int) error { return p.del(ctx, all[i]) }))
}

func (p *pods) close() error {
	p.mu.Lock()
	names := slices.Collect(maps.Keys(p.left))
	p.mu.Unlock()
	var errs []error
	for _, name := range names {
		errs = append(errs, p.remove(name))
	}
	return errors.Join(errs...)
}

// inside runs plugins in a node's network namespace and, where it has one, in
// its mount namespace.
type inside struct {
	invoke.RawExec
	version.PluginDecoder
	netns, mountNS string
}

// ExecPlugin implements invoke.Exec.
func (e *inside) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) (out []byte, err error) {
	err = ns.Do(e.netns, func() error {
		if e.mountNS != "" {
			if err := enterMounts(e.mountNS); err != nil {
				return err
			}
		}
		out, err = e.RawExec.ExecPlugin(ctx, plugin, stdin, env)
		return err
	})
	return out, err
}

// enterMounts moves the calling thread, which stays locked to its goroutine, to a mount namespace. The
// thread must not share its root and working directory with others (setns(2)).
func enterMounts(path string) error {
	runtime.LockOSThread()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open mount namespace: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the filesystem attributes of the thread: %w", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace %s: %w", path, err)
	}
	return nil
}
