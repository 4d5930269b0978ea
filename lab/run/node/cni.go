package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// nsExec runs plugins inside the node's namespace: portmap, for one, writes rules to where it runs.
type nsExec struct {
	invoke.RawExec
	version.PluginDecoder
	netns string
}

func inNetns(path string) invoke.Exec { return &nsExec{netns: path} }

// ExecPlugin implements invoke.Exec.
func (e *nsExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) (out []byte, err error) {
	err = ns.Do(e.netns, func() error {
		out, err = e.RawExec.ExecPlugin(ctx, plugin, stdin, env)
		return err
	})
	return out, err
}

// Runtime is a further container runtime on this node: what it knows of
// attachments is in cacheDir and of no interest to the node's own.
func (n *Node) Runtime(cacheDir string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{n.CNIBinDir()}, cacheDir, inNetns(n.Netns))
}

// conf reads the node's network as a runtime does: the first configuration by name.
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

// CNICode is the code of a plugin's error, 0 when err is none.
func CNICode(err error) uint {
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// firstInterface is what runtimes call the interface of a pod that they ask for.
const firstInterface = "eth0"

// runtimeConf is what a runtime passes to the plugins for a pod.
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
	// libcni passes to each plugin what its configuration declares.
	rt.CapabilityArgs = map[string]any{"io.kubernetes.cri.pod-annotations": p.annotations()}
	if len(p.Ports) > 0 {
		rt.CapabilityArgs["portMappings"] = p.Ports
	}
	return rt
}

// annotations are the pod's as containerd and CRI-O pass them on: with what the
// kubelet adds.
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

// GC runs CNI GC with the pods that are up. No pod may be added or deleted meanwhile: runtimes prevent that too.
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
