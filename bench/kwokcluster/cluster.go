// Package kwokcluster measures Berth in operator mode in a cluster of thousands of nodes and tens of thousands of pods, with
// a real control plane, operator and EC2 API over HTTP. Some nodes are machines of the lab with berthd and pods. KWOK's
// controller keeps the others and their pods alive. Each of these has the part of berthd that uses the API server
// (internal/source/nodenetworksupplier), with the token of its own pod; only its data path and its sandboxes are missing.
//
//	cluster.go  starting and stopping
//	nodes.go    the simulated nodes and all pods
//	measure.go  the measurements
//	traffic.go  counters of the API server and of connections
package kwokcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/whole"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/proc"
)

// Order is one run.
type Order struct {
	Nodes    int            // all of them
	Machines int            // of the nodes, with berthd
	Pods     int            // of each node
	Limit    spec.RateLimit // bucket of each action of EC2 that changes something
	Delay    time.Duration  // of each EC2 call
	Period   time.Duration  // of the measurement of load and traffic at rest

	BinDir string // Berth's programs
	Assets string // the control plane's programs
	Kwok   string // directory of kwok and its configuration
	Say    func(format string, args ...any)
}

// cluster is the state of a run.
type cluster struct {
	Order
	dir    string
	lab    *lab.Lab
	kwok   *proc.Process
	daemon *rest.Config     // of the API server, without credentials
	nodes  []*simulatedNode // the simulated ones

	running sync.WaitGroup // simulated daemons, and pods that wait for an address
	mu      sync.Mutex     // guards all below
	waiting int            // pods
	failed  error          // of a simulated daemon
	serial  int            // of the last pod
}

// Run starts a cluster, measures, and removes it.
func Run(ctx context.Context, o Order) (out Outcome, err error) {
	defer must.Catch(&err)
	c := &cluster{Order: o, dir: must.Get(os.MkdirTemp("", "bench-"))}
	defer func() { err = errors.Join(err, c.close()) }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel() // before close, which waits for the simulated daemons
	c.raise(ctx)
	if out, err = c.measure(ctx); err != nil {
		return out, fmt.Errorf("%w\n%s\n%s", err, c.lab.Operators()[0].LogTail(20), c.kwok.LogTail(20))
	}
	return out, nil
}

// patience limits a run.
const patience = 90 * time.Minute

// raise starts the lab with its machines, and KWOK.
func (c *cluster) raise(ctx context.Context) {
	c.Say("  starting a control plane, an EC2 with %d instances, the operator and %d daemons", c.Nodes, c.Machines)
	s := lab.DefaultSpec(c.Nodes, whole.InstanceType)
	whole.Enlarge(&s, c.Limit, c.Delay)
	machines := map[string]bool{}
	for _, i := range s.Instances[:c.Machines] {
		machines[i.Name] = true
	}
	quiet := []string{"--log-level=warn"}
	c.lab = must.Get(lab.Start(ctx, lab.Options{
		Dir: filepath.Join(c.dir, "lab"), ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: c.BinDir, KubeAssets: c.Assets,
		Mode: lab.OperatorMode, Spec: &s, Simulated: func(name string) bool { return !machines[name] },
		DaemonArgs: append([]string{"--cni-chain="}, quiet...), OperatorArgs: quiet,
	}))
	admin := must.Get(clientcmd.BuildConfigFromFlags("", c.lab.Kube.Kubeconfig))
	c.daemon = rest.AnonymousClientConfig(admin)
	c.reportDaemons(ctx)
	c.kwok = proc.New("kwok", filepath.Join(c.dir, "kwok.log"), func() proc.Command {
		return proc.Command{
			Path: filepath.Join(c.Kwok, "kwok"), Netns: c.lab.RouterPath(),
			Args: []string{
				"--kubeconfig=" + c.lab.Kube.AdminKubeconfig(), "--config=" + filepath.Join(c.Kwok, "stages.yaml"),
				"--manage-nodes-with-annotation-selector=" + kwokNode + "=" + simulated,
				"--node-lease-duration-seconds=" + strconv.Itoa(int(4*leaseRenewal/time.Second)),
				"--cidr=100.64.0.0/10", "--node-ip=127.0.0.1", "--v=WARN",
			},
		}
	})
	must.OK(c.kwok.Start())
}

// leaseRenewal is the time between two renewals of a node's Lease by KWOK, a quarter of the Lease's duration: four times that
// of kubelets.
const leaseRenewal = 40 * time.Second

// KWOK manages Nodes with this annotation, as in its documentation.
const kwokNode, simulated = "kwok.x-k8s.io/node", "fake"

// reportDaemons makes the pods of the machines' daemons Ready, as kubelets do.
func (c *cluster) reportDaemons(ctx context.Context) {
	for _, n := range c.lab.Nodes() {
		p := must.Get(c.lab.Kube.Workloads.DaemonPod(n.Name))
		must.OK(c.lab.Kube.Client.Get(ctx, keyOf(p), p))
		p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		must.OK(c.lab.Kube.Client.Status().Update(ctx, p))
	}
}

// close stops everything and removes the files.
func (c *cluster) close() error {
	var errs []error
	if c.kwok != nil {
		errs = append(errs, c.kwok.Kill())
	}
	if c.lab != nil {
		errs = append(errs, c.lab.Err(), c.lab.Close())
	}
	c.running.Wait()
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}
