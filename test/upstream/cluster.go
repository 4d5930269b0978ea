package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/control"
	"github.com/berthnet/berth/internal/lab/network/fabric"
	"github.com/berthnet/berth/internal/lab/run/kube"
)

// modes are those of Berth, in the order of the tables.
var modes = []string{string(lab.NodeMode), string(lab.OperatorMode), string(lab.PoolMode)}

const (
	// labDir is where the cluster lives. Sockets lie in it, so it is short.
	labDir = "/run/vpclab/upstream"
	// nodes is how many the cluster has: some specs need two with pods and one more.
	nodes = 3
	// instanceType has addresses for the pods of several specs at a time, with those
	// that cool down.
	instanceType = "m5.xlarge"
	// patience ends a cluster that does not come up.
	patience = 5 * time.Minute
)

// daemonArgs are what the cluster's network needs. The API server, by which tests
// reach pods, is outside the VPC; so pods answer it by their own addresses only if
// told so.
var daemonArgs = map[lab.Mode][]string{
	lab.NodeMode:     {apiWithoutSNAT},
	lab.OperatorMode: {apiWithoutSNAT},
}

var apiWithoutSNAT = fmt.Sprintf("--exclude-snat-cidrs=%s/32", fabric.APIEndpoint)

// raise raises a cluster of the lab with Berth in it, from the chart and the images
// that users have, and returns what removes it again.
func (o options) raise(ctx context.Context, out io.Writer) (cluster, func() error, error) {
	began := time.Now()
	fmt.Fprintf(out, "Raising a cluster of %d nodes in mode %s ...\n", nodes, o.mode)
	if err := os.MkdirAll(labDir, 0o755); err != nil {
		return cluster{}, nil, fmt.Errorf("make the folder of the cluster: %w", err)
	}
	release, err := control.Lock(labDir)
	if err != nil {
		return cluster{}, nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := lab.Start(up, lab.Options{
		Dir: labDir, Mode: lab.Mode(o.mode), Nodes: nodes, InstanceType: instanceType,
		OperatorCount: 2, DaemonArgs: daemonArgs[lab.Mode(o.mode)],
		Kubelets: &lab.Kubelets{Images: filepath.SplitList(o.images), Containerd: o.containerd},
		Progress: func(line string) {
			fmt.Fprintf(out, "  %5.1f s  %s\n", time.Since(began).Seconds(), line)
		},
	})
	if err != nil {
		release()
		return cluster{}, nil, fmt.Errorf("raise a cluster: %w", err)
	}
	lower := func() error {
		defer release()
		return errors.Join(l.Trouble(), l.Close())
	}
	// The tests know the API server by its own address alone.
	c := cluster{kubeconfig: filepath.Join(labDir, "upstream.kubeconfig"), netns: l.Kube.Netns}
	if err := kube.WriteKubeconfig(c.kubeconfig, l.Kube.Config()); err != nil {
		return cluster{}, nil, errors.Join(err, lower())
	}
	return c, lower, nil
}
