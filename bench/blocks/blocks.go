// Package blocks has many nodes ask for a block of an address pool at once, and
// measures what berth-operator, a process of its own, needs to answer. API
// server, roles and admission policies are real; the nodes are objects.
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
	// Served is from the operator's start, with all requests there, until the
	// last one was complete.
	Served time.Duration
	// Bare is what the writes alone of so many requests take: as many workers,
	// the same objects, and nothing else. It is reckoned from 1,000 of them.
	Bare time.Duration
	// CPU is the operator's, until it rests, without that of an operator that
	// starts where nobody asks.
	CPU time.Duration
	// Writes are the API server's requests to change something, by resource,
	// whatever became of them, while the operator ran.
	Writes Writes
	Memory int64 // the most private memory that the operator had, in bytes
}

// Run raises everything, measures, and takes it down.
func Run(ctx context.Context, o Order) (out Outcome, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ctrllog.SetLogger(logr.Discard()) // of the clients; errors come as such
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

// subnet is the pool's: 32,768 blocks of 32 addresses of either family.
var subnet = v1alpha1.PoolSubnet{IPv4: "10.0.0.0/12", IPv6: "fd02::/108"}

const (
	// poolName is the pool of all requests.
	poolName      = v1alpha1.DefaultPool
	blockSizeBits = 5
	// patience is how long a run may take.
	patience = 15 * time.Minute
)

// run is what is up during a run.
type run struct {
	Order
	kube     *lab.Cluster
	operator *lab.Operator
}

// measure does the run.
func (r *run) measure(ctx context.Context) (out Outcome, err error) {
	defer must.Catch(&err)
	resting := r.startUp(ctx)
	r.ask(ctx, "", r.Nodes)
	r.serve(ctx, &out)
	out.CPU -= resting
	r.check(ctx)
	out.Bare = r.bare(ctx)
	r.Say("  %d requests served in %v, by their bare writes %v; %v of CPU, %d MiB", r.Nodes,
		out.Served.Round(100*time.Millisecond), out.Bare.Round(100*time.Millisecond), out.CPU, out.Memory>>20)
	return out, nil
}

// startUp has an operator accept the pool while nobody asks for a block, ends
// it, and returns what CPU time that took.
func (r *run) startUp(ctx context.Context) time.Duration {
	must.OK(r.operator.Start())
	must.OK(r.operator.WaitReady(ctx))
	cpu := must.Get(usage.Settled(ctx, r.operator.PID()))
	must.OK(r.operator.Kill())
	return cpu
}

// serve starts the operator, waits until all requests are complete, and ends it.
func (r *run) serve(ctx context.Context, out *Outcome) {
	before := r.counted(ctx, r.Nodes) // the requests
	begin := time.Now()
	must.OK(r.operator.Start())
	watched, stop := context.WithCancel(ctx)
	defer stop()
	peak := make(chan int64, 1)
	go func() { peak <- usage.Peak(watched, r.operator.PID()) }()
	r.waitUntilComplete(ctx)
	out.Served = time.Since(begin)
	out.CPU = must.Get(usage.Settled(ctx, r.operator.PID()))
	stop()
	out.Memory = <-peak
	out.Writes = r.counted(ctx, before.Others()+2*r.Nodes).since(before)
	must.OK(r.operator.Kill())
}

// waitUntilComplete returns once all requests are.
func (r *run) waitUntilComplete(ctx context.Context) {
	done := map[string]bool{}
	err := objects.Until(ctx, r.kube.Client, &v1alpha1.BlockRequestList{}, r.operator.Exited(), func(q *v1alpha1.BlockRequest) bool {
		if meta.IsStatusConditionTrue(q.Status.Conditions, v1alpha1.ConditionComplete) {
			done[q.Name] = true
		}
		return len(done) == r.Nodes
	})
	if err != nil {
		must.OK(fmt.Errorf("%d of %d requests are complete: %w", len(done), r.Nodes, err))
	}
}

// check requires that every request has a block of its own, and that there is no other block.
func (r *run) check(ctx context.Context) {
	requests, blocks := &v1alpha1.BlockRequestList{}, &v1alpha1.AddressBlockList{}
	must.OK(r.kube.Client.List(ctx, requests))
	must.OK(r.kube.Client.List(ctx, blocks))
	given := map[string]*v1alpha1.BlockRequest{}
	for i := range requests.Items {
		given[requests.Items[i].Status.AddressBlockName] = &requests.Items[i]
	}
	for _, b := range blocks.Items {
		if q := given[b.Name]; q == nil || q.UID != b.RequestUID || q.Spec.NodeName != b.NodeName {
			must.OK(fmt.Errorf("block %s of %s is no request's, or another's", b.Name, b.NodeName))
		}
	}
	if len(given) != r.Nodes || len(blocks.Items) != r.Nodes {
		must.OK(fmt.Errorf("%d requests were given %d of %d blocks, expected one each", r.Nodes, len(given), len(blocks.Items)))
	}
}
