package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/lab"
)

func contextFor(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), timeout)
}

func absDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--dir: %w", err)
	}
	return abs, nil
}

// absolute makes paths independent of the directory that the command runs in.
func (f *labFlags) absolute() error {
	for _, p := range []*string{&f.dir, &f.specFile, &f.binDir} {
		if *p == "" {
			continue
		}
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}

// printNext says what to do with a lab that has a node.
func printNext(w io.Writer, dir string, s lab.Status) {
	at, node := "", s.Nodes[0].Name
	if dir != lab.DefaultDir {
		at = " --dir " + dir
	}
	shown, kind := "nodes, ENIs, addresses, pods, drops", "nodenetworks"
	if s.Mode == lab.PoolMode {
		shown, kind = "pools, blocks, nodes, pods", "addresspools,addressblocks"
	}
	lines := [][2]string{
		{"vpclab status" + at, shown},
		{"vpclab pod add" + at + " " + node + " web", "a pod, through CNI as a runtime would"},
		{"vpclab exec" + at + " " + node + "/web -- ip addr", "a command inside the pod, or inside a node"},
		{"vpclab exec" + at + " " + node + " -- curl -s localhost:6666/ip-manager", "what berthd knows"},
		{"vpclab kill" + at + " " + node + " --restart", "kill -9 berthd and start it again"},
		{"vpclab down" + at, "remove everything"},
	}
	if s.Mode != lab.PoolMode {
		lines = slices.Insert(lines, 4, [2]string{"vpclab calls" + at + " --follow", "EC2 calls with their parameters"}, [2]string{"vpclab fault" + at + " throttle '*' 1", "make EC2 misbehave"})
	}
	if s.Kubeconfig != "" {
		lines = append([][2]string{
			{"export KUBECONFIG=" + s.Kubeconfig, "then kubectl get " + kind + ", if you have kubectl"},
			{"vpclab kill" + at + " operator-1", "kill -9 an operator; vpclab start brings it back"},
		}, lines...)
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprintf(table, "  %s\t%s\n", l[0], l[1])
	}
	_ = table.Flush() // to a terminal or a pipe that nobody needs
}
