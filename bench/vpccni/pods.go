package vpccni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"

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
	node   *node.Node
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	failed atomic.Int64 // number of failed ADDs

	mu   sync.Mutex // guards all below; never held across I/O
	made int
	left map[string]bool // existing sandboxes by name
}

// newPods returns the pods of a node, created with the plugins of a CNI configuration.
func newPods(n *node.Node, conf string) (*pods, error) {
	list, err := libcni.NetworkConfFromFile(conf)
	if err != nil {
		return nil, fmt.Errorf("read the CNI configuration: %w", err)
	}
	return &pods{node: n, list: list, left: map[string]bool{}, cni: n.Runtime(filepath.Join(n.Dir, "var", "lib", "cni"))}, nil
}

// sandbox creates the network namespace of a new pod.
func (p *pods) sandbox() *libcni.RuntimeConf {
	p.mu.Lock()
	p.made++
	name := fmt.Sprintf("%s%d", p.node.PodPrefix, p.made)
	p.mu.Unlock()
	must.OK(ns.Create(name))
	p.mu.Lock()
	p.left[name] = true
	p.mu.Unlock()
	return &libcni.RuntimeConf{
		ContainerID: name, NetNS: ns.Path(name), IfName: "eth0",
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
	delete(p.left, name)
	p.mu.Unlock()
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
