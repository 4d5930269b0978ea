// Package vpccni has Berth and the unmodified Amazon VPC CNI do the same work, each
// on a lab of its own of the same specification, with the same warm targets, and
// measures how long it takes them. Both labs have a Kubernetes API server, which
// the Amazon VPC CNI needs.
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

// Order is what all runs share.
type Order struct {
	BinDir string // of berth and berthd
	CNIDir string // of the Amazon VPC CNI's aws-k8s-agent and routed-eni-cni-plugin
	Assets string // of the control plane
}

// System is one of the two that are compared.
type System string

// The two.
const (
	Berth        System = "berth"
	AmazonVPCCNI System = "amazon-vpc-cni"
)

// Systems are both, in the order in which they take turns.
var Systems = []System{Berth, AmazonVPCCNI}

// setup is the lab that a measurement wants.
type setup struct {
	nodes        int
	instanceType string
	// env are warm targets and the like, which both read.
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

// daemon is a system's on one node.
type daemon interface {
	// Start starts it and returns at once.
	Start(more ...string) error
	Running() bool
	Kill() error
	LogTail(lines int) string
	// ready returns what calls the system's plugin, once ADDs are taken.
	ready(ctx context.Context) (*pods, error)
}

// raise raises a bed whose daemons do not run yet.
func (b *bed) raise(ctx context.Context, s setup) {
	what := lab.DefaultSpec(s.nodes, s.instanceType)
	// What either may call is no part of what is measured.
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

// register makes a node's object, as its kubelet does.
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

// start starts a machine's daemon and returns once it takes ADDs. One that ends
// by itself is started again, at once and then after ten seconds, twenty and so
// on, as by a kubelet.
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
		if !pause(ctx, often) {
			must.OK(fmt.Errorf("%s is not ready: %w\n%s", m.Name, err, m.daemon.LogTail(20)))
		}
	}
}

// firstBackoff is a kubelet's of a container that has ended twice.
const firstBackoff = 10 * time.Second

// assigned are the addresses that EC2 has given a node for pods, and the ENIs
// that are attached to it.
func (b *bed) assigned(m *machine) (addresses, enis int) {
	for _, e := range b.Cloud.Snapshot().InstanceENIs(m.InstanceID) {
		if e.Attachment.Status == vpc.Attached {
			enis++
			addresses += len(e.Secondary)
		}
	}
	return addresses, enis
}

// until waits for a condition of the lab that comes soon.
func (b *bed) until(ctx context.Context, what string, is func() bool) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for !is() {
		if !pause(ctx, often) {
			var logs string
			for _, m := range b.machines {
				logs += "\n" + m.daemon.LogTail(20)
			}
			must.OK(fmt.Errorf("no %s within %v%s", what, longest, logs))
		}
	}
}

// within is how many seconds after a moment a condition of the lab came, or the
// longest when that was over before.
func (b *bed) within(ctx context.Context, began time.Time, is func() bool) float64 {
	for !is() && time.Since(began) < longest {
		if !pause(ctx, often) {
			must.OK(ctx.Err())
		}
	}
	return time.Since(began).Seconds()
}

// longest is how long a condition of the lab may take.
const longest = 2 * time.Minute

// close removes everything.
func (b *bed) close() error {
	var errs []error
	for _, m := range b.machines {
		errs = append(errs, m.daemon.Kill())
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

// often is the interval at which conditions without a notification are polled.
const often = 10 * time.Millisecond

// pause waits; false when ctx ended instead.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
