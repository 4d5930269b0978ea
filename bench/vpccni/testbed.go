// Package vpccni runs the same workloads with Berth and with the unmodified Amazon VPC CNI, in separate labs
// of the same specification and with the same warm targets, and measures how long they take. Both labs have
// a Kubernetes API server, which the Amazon VPC CNI needs.
package vpccni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
)

// Order has the settings that all runs share.
type Order struct {
	BinDir string // of berth and berthd
	CNIDir string // of the Amazon VPC CNI's aws-k8s-agent and routed-eni-cni-plugin
	Assets string // of the control plane
}

// System is one of the two systems that are compared.
type System string

// The systems.
const (
	Berth        System = "berth"
	AmazonVPCCNI System = "amazon-vpc-cni"
)

// Systems lists both systems, in the order in which they take turns.
var Systems = []System{Berth, AmazonVPCCNI}

// setup describes the lab of a workload.
type setup struct {
	nodes        int
	instanceType string
	// env has settings that both systems read, such as warm targets.
	env    map[string]string
	limits map[string]spec.RateLimit // nil: EC2's documented ones
}

// bed is one lab with one system on its nodes.
type bed struct {
	Order
	*lab.Lab
	system   System
	control  *kube.ControlPlane
	machines []*machine
	dir      string
}

// machine is a node of a bed with its daemon and its container runtime.
type machine struct {
	*node.Node
	daemon daemon
	pods   *pods
}

// daemon is a system's daemon on one node.
type daemon interface {
	// Start starts the daemon and does not wait for it.
	Start(more ...string) error
	Running() bool
	Close() error
	LogTail(lines int) string
	// ready returns the pods of the node, or an error while the system does not accept ADDs.
	ready(ctx context.Context) (*pods, error)
}

// raise starts the lab without daemons.
func (b *bed) raise(ctx context.Context, s setup) {
	what := lab.DefaultSpec(s.nodes, s.instanceType)
	// Permissions are not part of the measurement.
	what.Roles[0].Policy, what.Roles[0].Actions = "", []string{"*"}
	what.RateLimits = s.limits
	b.Lab = must.Get(lab.Start(ctx, lab.Options{
		Dir: filepath.Join(b.dir, "lab"), BinDir: b.BinDir, Spec: &what, NoDaemons: true,
		DaemonArgs: []string{"--cni-chain="}, BerthdEnv: s.env,
	}))
	b.control = must.Get(kube.Start(ctx, kube.Options{
		Assets: b.Assets, Dir: filepath.Join(b.dir, "kube"), Netns: b.RouterPath(), Address: fabric.APIEndpoint,
	}))
	for _, n := range b.Nodes() {
		must.OK(b.register(ctx, n))
		m := &machine{Node: n, daemon: berthd{n}}
		if b.system == AmazonVPCCNI {
			m.daemon = newIPAMD(b, n, s.env)
		}
		b.machines = append(b.machines, m)
	}
}

// register creates the Node, as its kubelet does.
func (b *bed) register(ctx context.Context, n *node.Node) error {
	api, err := kubernetes.NewForConfig(b.control.Config())
	if err != nil {
		return err
	}
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: corev1.NodeSpec{ProviderID: "aws:///lab-1a/" + n.InstanceID}}
	if o, err = api.CoreV1().Nodes().Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	o.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("250")}
	if _, err = api.CoreV1().Nodes().UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	return nil
}

// start starts a machine's daemon and returns once it accepts ADDs. A daemon that exits is restarted as by a kubelet:
// immediately, then after ten seconds, twenty seconds and so on.
func (m *machine) start(ctx context.Context) {
	must.OK(m.daemon.Start())
	var backoff time.Duration
	for {
		pods, err := m.daemon.ready(ctx)
		if err == nil {
			m.pods = pods
			return
		}
		if !m.daemon.Running() {
			pause(ctx, backoff)
			must.OK(m.daemon.Start())
			backoff = max(firstBackoff, 2*backoff)
		}
		if !pause(ctx, pollInterval) {
			must.OK(fmt.Errorf("%s is not ready: %w\n%s", m.Name, err, m.daemon.LogTail(20)))
		}
	}
}

// firstBackoff is a kubelet's backoff for a container that has exited twice.
const firstBackoff = 10 * time.Second

// assigned returns the numbers of a node's secondary addresses and attached ENIs in EC2.
func (b *bed) assigned(m *machine) (addresses, enis int) {
	for _, e := range b.Cloud.Snapshot().InstanceENIs(m.InstanceID) {
		if e.Attachment.Status == vpc.Attached {
			enis++
			addresses += len(e.Secondary)
		}
	}
	return addresses, enis
}

// until waits for a condition of the lab.
func (b *bed) until(ctx context.Context, what string, is func() bool) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for !is() {
		if !pause(ctx, pollInterval) {
			var logs string
			for _, m := range b.machines {
				logs += "\n" + m.daemon.LogTail(20)
			}
			must.OK(fmt.Errorf("no %s within %v%s", what, longest, logs))
		}
	}
}

// within returns the seconds from began until a condition of the lab holds, but no more than longest.
func (b *bed) within(ctx context.Context, began time.Time, is func() bool) float64 {
	for !is() && time.Since(began) < longest {
		if !pause(ctx, pollInterval) {
			must.OK(ctx.Err())
		}
	}
	return time.Since(began).Seconds()
}

// longest limits the wait for a condition of the lab.
const longest = 2 * time.Minute

// close removes everything.
func (b *bed) close() error {
	var errs []error
	for _, m := range b.machines {
		errs = append(errs, m.daemon.Close())
		if m.pods != nil {
			errs = append(errs, m.pods.close())
		}
	}
	if b.control != nil {
		errs = append(errs, b.control.Stop())
	}
	if b.Lab != nil {
		errs = append(errs, b.Lab.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// pollInterval is the interval at which conditions are polled.
const pollInterval = 10 * time.Millisecond

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
