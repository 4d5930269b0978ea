package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// nsExec runs plugins in the node's network namespace, because portmap writes its rules to the current namespace.
type nsExec struct {
	invoke.RawExec
	version.PluginDecoder
	netns  string
	mounts *pluginMounts
}

// pluginMounts are the mount namespaces in which plugins run, by the plugins' file names.
type pluginMounts struct {
	mu     sync.Mutex // guards byName
	byName map[string]func() string
}

// of returns the path of a plugin's mount namespace; empty: the lab's own.
func (p *pluginMounts) of(plugin string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if path := p.byName[plugin]; path != nil {
		return path()
	}
	return ""
}

// ExecPlugin implements invoke.Exec.
func (e *nsExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) (out []byte, err error) {
	mounts := e.mounts.of(filepath.Base(plugin))
	if mounts != "" {
		visible, done, err := withVisibleNetns(env)
		if err != nil {
			return nil, err
		}
		defer done()
		env = visible
	}
	err = ns.Do(e.netns, func() error {
		if mounts != "" {
			if err := ns.EnterMounts(mounts); err != nil {
				return err
			}
		}
		out, err = e.RawExec.ExecPlugin(ctx, plugin, stdin, env)
		return err
	})
	return out, err
}

// withVisibleNetns replaces the path of the pod's namespace, whose file is missing in other mount namespaces, by one of
// this process, which is valid until done is called.
func withVisibleNetns(env []string) (visible []string, done func(), err error) {
	const variable = "CNI_NETNS="
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, variable) && v != variable })
	if i < 0 {
		return env, func() {}, nil
	}
	f, err := os.Open(strings.TrimPrefix(env[i], variable))
	if errors.Is(err, os.ErrNotExist) {
		return env, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	visible = slices.Clone(env)
	visible[i] = fmt.Sprintf("%s/proc/%d/fd/%d", variable, os.Getpid(), f.Fd())
	return visible, func() { _ = f.Close() }, nil
}

// RunIn makes a plugin run in a mount namespace, whose path may change; empty: the lab's own.
func (n *Node) RunIn(plugin string, mounts func() string) {
	n.mounts.mu.Lock()
	defer n.mounts.mu.Unlock()
	n.mounts.byName[plugin] = mounts
}

// Runtime is another container runtime on this node. It keeps its own attachments in cacheDir.
func (n *Node) Runtime(cacheDir string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{n.CNIBinDir()}, cacheDir, &nsExec{netns: n.Netns, mounts: n.mounts})
}

// conf reads the node's network configuration like a runtime: the first one by name.
func (n *Node) conf() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.ConfDir(), []string{".conflist"})
	if err != nil {
		return nil, fmt.Errorf("list CNI configuration: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no CNI configuration in %s yet", n.ConfDir())
	}
	slices.Sort(files)
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Base(files[0]), err)
	}
	return list, nil
}

// CNICode returns the code of a plugin's error, or 0 if err is nil.
func CNICode(err error) uint {
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// firstInterface is the name of a pod's interface in requests of runtimes.
const firstInterface = "eth0"

// runtimeConf returns a runtime's parameters of the plugins for a pod.
func (p *Pod) runtimeConf() *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: p.ContainerID, NetNS: p.Netns(), IfName: firstInterface,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", p.Namespace},
			{"K8S_POD_NAME", p.ObjectName},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ContainerID},
			{"K8S_POD_UID", p.UID},
		},
	}
	// libcni passes to each plugin the capabilities that its configuration declares.
	rt.CapabilityArgs = map[string]any{"io.kubernetes.cri.pod-annotations": p.annotations()}
	if len(p.Ports) > 0 {
		rt.CapabilityArgs["portMappings"] = p.Ports
	}
	return rt
}

// annotations returns the pod's annotations as containerd and CRI-O pass them on, including those that the kubelet adds.
func (p *Pod) annotations() map[string]string {
	all := map[string]string{"kubernetes.io/config.source": "api"}
	maps.Copy(all, p.Annotations)
	return all
}

// CheckPod runs CNI CHECK for a pod.
func (n *Node) CheckPod(ctx context.Context, name string) error {
	p, err := n.Pod(name)
	if err != nil {
		return err
	}
	list, err := n.conf()
	if err != nil {
		return err
	}
	return n.cni.CheckNetworkList(ctx, list, p.runtimeConf())
}

// Status runs CNI STATUS.
func (n *Node) Status(ctx context.Context) error {
	list, err := n.conf()
	if err != nil {
		return err
	}
	return n.cni.GetStatusNetworkList(ctx, list)
}

// GC runs CNI GC with the running pods. No pod may be added or deleted at the same time; runtimes prevent that too.
func (n *Node) GC(ctx context.Context) error {
	list, err := n.conf()
	if err != nil {
		return err
	}
	args := &libcni.GCArgs{}
	for _, p := range n.Pods() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.ContainerID, IfName: firstInterface})
	}
	return n.cni.GCNetworkList(ctx, list, args)
}
