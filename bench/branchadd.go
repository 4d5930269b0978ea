package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/poll"
)

// raiseBranchLab raises a lab in operator mode with one node, which has a trunk.
func (b *testbed) raiseBranchLab(ctx context.Context) (err error) {
	say("raising a lab with a trunk")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // there is no KVM in the virtual machine
	defer cancel()
	s := lab.DefaultSpec(1, nodeType)
	s.Throttle = "none" // the cloud's pace is no part of what is measured
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.dirs.run, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.options.binDir,
		Mode: lab.OperatorMode, Spec: &s, VPCPorts: true, PortCloud: portcloud.NewBranches, VPCs: []lab.VPC{{Name: lab.BranchVPC}},
		DaemonArgs: benchDaemonArgs, OperatorArgs: []string{"--leader-elect=false", "--log-level=warn", "--branch-cooling=1s"},
	})
	if err != nil {
		return fmt.Errorf("raise a lab: %w", err)
	}
	b.few = b.lab.Nodes()[0]
	if err := b.installBerth(); err != nil {
		return err
	}
	return poll.Until(ctx, func() error { return b.few.WaitReady(ctx) })
}

// branchAdds measures the whole ADD, from exec to result, of pods whose first interface is a branch that
// is bound to the node already, in turn with pods that get a warm address of an ENI.
func branchAdds(ctx context.Context, b *bench) ([]Result, error) {
	s, err := rounds(b.options.rounds, func(i int, note note) error {
		p, _, err := b.bed.nicPod(ctx, fmt.Sprintf("branch-%d", i), lab.BranchVPC, "[{name: eth0}]", 1)
		if err != nil {
			return err
		}
		// A runtime asks for pods that the API server has. This one it asks for alone, so that it waits for none.
		ordinary := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: fmt.Sprintf("ordinary-%d", i), UID: uuid.NewUUID()}}
		ways := []func() error{
			func() error { return b.bed.addPod(ctx, p, "branch ", note) },
			func() error { return b.bed.addPod(ctx, ordinary, "ordinary ", note) },
		}
		for j := range ways {
			if err := ways[(i+j)%len(ways)](); err != nil {
				return err
			}
		}
		return b.bed.lab.Kube.Client.Delete(ctx, p, kubeclient.GracePeriodSeconds(0))
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		ratio("branch-add", "ms", s["branch add"], s["ordinary add"]),
		ratio("branch-del", "ms", s["branch del"], s["ordinary del"]),
	}, nil
}
