// Package ready measures how long pods of a whole cluster of the lab take until they
// are Ready, with Berth and with the reference plugins ptp and host-local, in turn on the same
// machines, kubelets and runtimes.
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
	// labDir is the directory of the cluster. It is short because it contains sockets.
	labDir = "/run/vpclab/bench"
	// nodes is the number of nodes.
	nodes = 3
	// instanceType has 8 ENIs with 29 addresses each: more ENIs than a burst of pods needs, and with
	// them Berth's default targets keep more than 29 addresses warm.
	instanceType = "m5.4xlarge"
	// MaxPods of a node is the kubelet's default, and the EKS value for machines with fewer than 30
	// processors.
	MaxPods = 110
	// patience is the time limit for the start of the cluster, and for that of pods.
	patience = 5 * time.Minute
)

// Order describes a cluster.
type Order struct {
	BinDir string
	Assets string   // of the control plane, kubelet and kube-proxy
	Images []string // folders with the images of machines
	Say    func(format string, args ...any)
}

// Cluster is a cluster with Berth in node mode, installed by its chart.
type Cluster struct {
	*lab.Lab
	release func()
	network Network
	values  map[string]any // of Berth's chart, besides the lab's own
}

// Raise starts a cluster with Berth as its network.
func Raise(ctx context.Context, o Order) (*Cluster, error) {
	if err := os.MkdirAll(labDir, 0o755); err != nil {
		return nil, fmt.Errorf("create the folder of the cluster: %w", err)
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
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	return &Cluster{Lab: l, release: release, network: Berth}, nil
}

// Close removes the cluster.
func (c *Cluster) Close() error {
	defer c.release()
	return errors.Join(c.Err(), c.Lab.Close(), os.RemoveAll(labDir))
}

// hosts returns the machines, sorted by name.
func (c *Cluster) hosts() (all []*host.Host) {
	for _, n := range c.Nodes() {
		all = append(all, must.Get(c.Machine(n.Name)))
	}
	return all
}
