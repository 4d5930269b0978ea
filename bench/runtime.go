package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// runtime calls a network's plugins on one node as a container runtime does.
type runtime struct {
	netns string // the node's
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	// sandboxes begin with this.
	prefix string
	args   [][2]string // CNI_ARGS
	made   []string
}

func newRuntime(netns, prefix, cacheDir string, pluginDir string, list *libcni.NetworkConfigList) *runtime {
	return &runtime{netns: netns, prefix: prefix, list: list, cni: libcni.NewCNIConfigWithCacheDir([]string{pluginDir}, cacheDir, nil)}
}

// sandbox makes a network namespace for one container.
func (r *runtime) sandbox() (*libcni.RuntimeConf, error) {
	name := fmt.Sprintf("%s%d", r.prefix, len(r.made))
	if err := ns.Create(name); err != nil {
		return nil, err
	}
	r.made = append(r.made, name)
	return &libcni.RuntimeConf{
		ContainerID: name, NetNS: ns.Path(name), IfName: "eth0", Args: r.args,
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"kubernetes.io/config.source": "api"}},
	}, nil
}

// sandboxes makes n of them.
func (r *runtime) sandboxes(n int) ([]*libcni.RuntimeConf, error) {
	var all []*libcni.RuntimeConf
	for range n {
		rt, err := r.sandbox()
		if err != nil {
			return nil, err
		}
		all = append(all, rt)
	}
	return all, nil
}

// add runs ADD and tells how long it took, from exec to result.
func (r *runtime) add(ctx context.Context, rt *libcni.RuntimeConf) (time.Duration, error) {
	return r.timed("ADD", rt, func() error {
		_, err := r.cni.AddNetworkList(ctx, r.list, rt)
		return err
	})
}

// del runs DEL and tells how long it took.
func (r *runtime) del(ctx context.Context, rt *libcni.RuntimeConf) (time.Duration, error) {
	return r.timed("DEL", rt, func() error { return r.cni.DelNetworkList(ctx, r.list, rt) })
}

// timed runs a verb in the node's namespace.
func (r *runtime) timed(verb string, rt *libcni.RuntimeConf, run func() error) (took time.Duration, err error) {
	err = ns.Do(r.netns, func() error {
		start := time.Now()
		err := run()
		took = time.Since(start)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s %s by %s: %w", verb, rt.ContainerID, r.list.Name, err)
	}
	return took, nil
}

// close removes the sandboxes.
func (r *runtime) close() error {
	var errs []error
	for _, name := range r.made {
		errs = append(errs, ns.Remove(name))
	}
	r.made = nil
	return errors.Join(errs...)
}
