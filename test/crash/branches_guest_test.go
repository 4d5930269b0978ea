//go:build guest && e2e

package crash

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// branchMode is operator mode with pods that have branches of both IP families, beside the first interface
// or as that. Only steps of ports are killed at: all others are those of operator mode.
func branchMode() mode {
	s := lab.DefaultSpec(2, "m5.large")
	s.Instances[1].Subnet = s.Instances[0].Subnet // a branch stays in its zone
	m := mode{
		name: lab.OperatorMode, daemon: named("plug.vlan.", "plug.routed."), operator: named("operator.port."),
		options: lab.Options{
			Spec: &s, VPCPorts: true, PortCloud: portcloud.NewBranches, OperatorArgs: []string{"--branch-cooling=1s"}, IPFamilies: ipfamily.Dual,
		},
	}
	// A port is handed over to a virtual machine only: its own package kills there.
	m.kills = slices.DeleteFunc(slices.Concat(m.operator, m.daemon), func(name string) bool { return strings.Contains(name, ".handover.") })
	return m
}

// TestProgramsKilledWithBranches kills the operator at every step of a port's life, and the daemon at every
// step of plugging and unplugging a VLAN, while branches come, move and go.
func TestProgramsKilledWithBranches(t *testing.T) {
	var err error
	harness.ControlPlane, err = kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	harness.KubeClean(t) // other packages' labs have nodes of the same names
	m := branchMode()
	l := harness.Raise(t, m.lab(2, 1))
	var trunks []string
	harness.OK(t, poll.Until(harness.Deadline(t, patience), func() (err error) {
		trunks, err = trunksOf(l)
		return err
	}))
	for _, name := range m.kills {
		ok := t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dieAt(ctx, t, m, l, name, func() { comeMoveAndGo(ctx, t, l) })
			harness.OK(t, noBranches(ctx, l))
			harness.Settle(t, l)
			if now, err := trunksOf(l); err != nil || !slices.Equal(now, trunks) {
				t.Errorf("the trunks were %v, are %v: %v", trunks, now, err)
			}
		})
		if !ok {
			return // the lab is no longer what the next one expects
		}
	}
}

// comeMoveAndGo adds and removes a pod with branches of its own, of which the first interface is one, and
// a pod whose NIC outlives it and goes to the other node.
func comeMoveAndGo(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	a, b := l.Nodes()[0], l.Nodes()[1]
	in := func(nics string) node.PodOptions {
		return node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: lab.BranchVPC, v1alpha1.AnnotationNICs: nics}}
	}
	db := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, Spec: v1alpha1.PodNICSpec{VPC: lab.BranchVPC}}
	harness.OK(t, l.Kube.Client.Create(ctx, db))
	harness.OK(t, harness.AtOnce(2, func(i int) error {
		var err error
		if i == 0 {
			_, err = a.AddPod(ctx, "own", in("[{name: eth0}, {name: eth2}]"))
		} else {
			_, err = a.AddPod(ctx, "db", in("[{name: eth1, nic: db}]"))
		}
		return err
	}))
	harness.Settle(t, l) // of EC2, PodNICs, VLANs in pods and records all say the same
	harness.OK(t, a.DelPod(ctx, "db"))
	_, err := b.AddPod(ctx, "db", in("[{name: eth1, nic: db}]"))
	harness.OK(t, err)
	harness.Settle(t, l)
	harness.OK(t, errors.Join(a.DelPod(ctx, "own"), b.DelPod(ctx, "db")))
	harness.OK(t, l.Kube.Client.Delete(ctx, db))
}
