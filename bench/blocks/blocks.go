// Package blocks creates block requests of an address pool for many nodes at once, and measures the
// resources that berth-operator, a separate process, needs to answer them. The API server, the roles and
// the admission policies are real; the nodes are only Node objects.
package blocks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/lab"
)

// Order is one run.
type Order struct {
	Nodes  int    // each with one request
	BinDir string // of berth-operator
	Assets string // of the control plane
	Say    func(format string, args ...any)
}

// Outcome is what a run measured.
type Outcome struct {
	// Served is the time from the operator's start, with all requests created before, until the last
	// request is complete.
	Served time.Duration
	// Bare is the time of the writes alone, by as many workers and with the same objects, until the same
	// client sees the last request complete. It is extrapolated from up to 1,000 requests.
	Bare time.Duration
	// CPU is the operator's CPU time until it is idle, minus that of an operator that starts without
	// requests.
	CPU time.Duration
	// Writes counts the write requests to the API server while the operator ran, including rejected
	// ones, by resource.
	Writes Writes
	Memory int64 // the operator's peak private memory, in bytes
}

// Run sets up the cluster, measures, and tears it down.
func Run(ctx context.Context, o Order) (out Outcome, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ctrllog.SetLogger(logr.Discard()) // of the clients; errors are returned
	dir := must.Get(os.MkdirTemp("", "bench-"))
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l := must.Get(lab.Start(ctx, lab.Options{
		Dir: dir, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: o.BinDir, KubeAssets: o.Assets,
		Mode: lab.PoolMode, Nodes: 1, NoDaemons: true,
		Pools:        []v1alpha1.AddressPool{lab.Pool(poolName, blockSizeBits, subnet)},
		OperatorArgs: []string{"--leader-elect=false", "--log-level=warn"},
	}))
	defer func() { err = errors.Join(err, l.Close()) }()
	r := &run{Order: o, kube: l.Kube, operator: l.Operators()[0]}
	if out, err = r.measure(ctx); err != nil {
		return out, fmt.Errorf("%d requests: %w\n%s", o.Nodes, err, r.operator.LogTail(15))
	}
	return out, nil
}

// subnet has 32,768 blocks of 32 addresses of each family.
var subnet = v1alpha1.PoolSubnet{IPv4: "10.0.0.0/12", IPv6: "fd02::/108"}

const (
	// poolName is the pool of all requests.
	poolName      = v1alpha1.DefaultPool
	blockSizeBits = 5
	// patience limits a run.
	patience = 15 * time.Minute
)

// run is the state of one run.
type run struct {
	Order
	kube     *lab.Cluster
	operator *lab.Operator
}

// measure executes the run.
func (r *run) measure(ctx context.Context) (out Outcome, err error) {
	defer must.Catch(&err)
	idle := r.startUp(ctx)
	r.createRequests(ctx, "", r.Nodes)
	r.serve(ctx, &out)
	out.CPU -= idle
	r.check(ctx)
	out.Bare = r.bare(ctx)
	r.Say("  %d requests served in %v, writes alone in %v; %v of CPU, %d MiB", r.Nodes,
		out.Served.Round(100*time.Millisecond), out.Bare.Round(100*time.Millisecond), out.CPU, out.Memory>>20)
	return out, nil
}

// startUp starts an operator without block requests, so that it accepts the pool, stops it, and returns
// its CPU time.
func (r *run) startUp(ctx context.Context) time.Duration {
	must.OK(r.operator.Start())
	must.OK(r.operator.WaitReady(ctx))
	cpu := must.Get(usage.Settled(ctx, r.operator.PID()))
	must.OK(r.operator.Kill())
	return cpu
}

// serve starts the operator, waits until all requests are complete, and stops it.
func (r *run) serve(ctx context.Context, out *Outcome) {
	before := r.counted(ctx, r.Nodes) // the requests
	begin := time.Now()
	must.OK(r.operator.Start())
	watched, stop := context.WithCancel(ctx)
	defer stop()
	peak := make(chan int64, 1)
	go func() { peak <- usage.Peak(watched, r.operator.PID()) }()
	r.waitUntilComplete(ctx, r.Nodes, r.operator.Exited(), func(int) {})
	out.Served = time.Since(begin)
	out.CPU = must.Get(usage.Settled(ctx, r.operator.PID()))
	stop()
	out.Memory = <-peak
	out.Writes = r.counted(ctx, before.Others()+2*r.Nodes).since(before)
	must.OK(r.operator.Kill())
}

// waitUntilComplete returns once n requests are complete. It calls seen with the number of complete ones whenever that grows, and
// fails if the operator exits, unless exited is nil.
func (r *run) waitUntilComplete(ctx context.Context, n int, exited <-chan struct{}, seen func(complete int)) {
	done := map[string]bool{}
	err := objects.Until(ctx, r.kube.Client, &v1alpha1.BlockRequestList{}, exited, func(q *v1alpha1.BlockRequest) bool {
		if !done[q.Name] && meta.IsStatusConditionTrue(q.Status.Conditions, v1alpha1.ConditionComplete) {
			done[q.Name] = true
			seen(len(done))
		}
		return len(done) == n
	})
	if err != nil {
		must.OK(fmt.Errorf("%d of %d requests are complete: %w", len(done), n, err))
	}
}

// check verifies that every request got its own block, and that no other block exists.
func (r *run) check(ctx context.Context) {
	requests, blocks := &v1alpha1.BlockRequestList{}, &v1alpha1.AddressBlockList{}
	must.OK(r.kube.Client.List(ctx, requests))
	must.OK(r.kube.Client.List(ctx, blocks))
	byBlock := map[string]*v1alpha1.BlockRequest{}
	for i := range requests.Items {
		byBlock[requests.Items[i].Status.AddressBlockName] = &requests.Items[i]
	}
	for _, b := range blocks.Items {
		if q := byBlock[b.Name]; q == nil || q.UID != b.RequestUID || q.Spec.NodeName != b.NodeName {
			must.OK(fmt.Errorf("block %s of node %s does not belong to the request that names it", b.Name, b.NodeName))
		}
	}
	if len(byBlock) != r.Nodes || len(blocks.Items) != r.Nodes {
		must.OK(fmt.Errorf("%d requests got %d of %d blocks, expected one each", r.Nodes, len(byBlock), len(blocks.Items)))
	}
}
