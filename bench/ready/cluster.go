// Package ready measures how long pods of a whole cluster of the lab take until they
// are Ready, with Berth as the cluster's network and with the reference plugins ptp and
// host-local in its place: the same machines, kubelets and runtimes, in turn.
package ready

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/run/host"
)

const (
	// labDir is where the cluster lives. Sockets lie in it, so it is short.
	labDir = "/run/vpclab/bench"
	// nodes is how many the cluster has.
	nodes = 3
	// instanceType has 8 ENIs with 29 addresses each, so that the targets that Berth
	// comes with keep more than 29 addresses warm, and more ENIs than a burst needs.
	instanceType = "m5.4xlarge"
	// MaxPods of a node: the kubelet's own default, and what EKS gives machines with
	// fewer than 30 processors.
	MaxPods = 110
	// patience ends a cluster that does not come up, and pods that do not.
	patience = 5 * time.Minute
)

// Order is what a cluster is raised from.
type Order struct {
	BinDir string
	Assets string   // of the control plane, kubelet and kube-proxy
	Images []string // folders with the images of machines
	Say    func(format string, args ...any)
}

// Cluster is one with Berth, raised from its chart, in node mode.
type Cluster struct {
	*lab.Lab
	release func()
	network Network
	values  map[string]any // of Berth's chart, besides the lab's own
}

// Raise raises a cluster with Berth as its network.
func Raise(ctx context.Context, o Order) (*Cluster, error) {
	if err := os.MkdirAll(labDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the cluster: %w", err)
	}
	release, err := control.Lock(labDir)
	if err != nil {
		return nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := lab.Start(up, lab.Options{
		Dir: labDir, BinDir: o.BinDir, KubeAssets: o.Assets, Mode: lab.NodeMode, Nodes: nodes, InstanceType: instanceType,
		Kubelets: &lab.Kubelets{Images: o.Images, MaxPods: MaxPods},
		Progress: func(line string) { o.Say("  %s", line) },
	})
	if err != nil {
		release()
		return nil, fmt.Errorf("raise a cluster: %w", err)
	}
	return &Cluster{Lab: l, release: release, network: Berth}, nil
}

// Close removes the cluster.
func (c *Cluster) Close() error {
	defer c.release()
	return errors.Join(c.Err(), c.Lab.Close(), os.RemoveAll(labDir))
}

// hosts are the machines, by the order of their names.
func (c *Cluster) hosts() (all []*host.Host) {
	for _, n := range c.Nodes() {
		all = append(all, must.Get(c.Machine(n.Name)))
	}
	return all
}
