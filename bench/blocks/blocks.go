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
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
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
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ctrllog.SetLogger(logr.Discard()) // of the clients; errors come as such
	r := &run{Order: o}
	if r.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return out, fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	r.lab, err = lab.Start(ctx, lab.Options{
		Dir: r.dir, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: o.BinDir, KubeAssets: o.Assets,
		Mode: lab.PoolMode, Nodes: 1, NoDaemons: true,
		Pools:        []v1alpha1.AddressPool{lab.Pool(poolName, blockSizeBits, subnet)},
		OperatorArgs: []string{"--leader-elect=false", "--log-level=warn"},
	})
	if err != nil {
		return out, fmt.Errorf("raise a lab: %w", err)
	}
	defer func() { err = errors.Join(err, r.lab.Close()) }()
	r.operator = r.lab.Operators()[0]
	if err := r.measure(ctx, &out); err != nil {
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
	dir      string
	lab      *lab.Lab
	operator *lab.Operator
}

// measure does the run.
func (r *run) measure(ctx context.Context, out *Outcome) error {
	resting, err := r.startUp(ctx)
	if err != nil {
		return fmt.Errorf("an operator without requests: %w", err)
	}
	if err := r.ask(ctx, "", r.Nodes); err != nil {
		return err
	}
	if err := r.serve(ctx, out); err != nil {
		return err
	}
	out.CPU -= resting
	if err := r.check(ctx); err != nil {
		return err
	}
	if out.Bare, err = r.bare(ctx); err != nil {
		return fmt.Errorf("bare writes: %w", err)
	}
	r.Say("  %d requests served in %v, by their bare writes %v; %v of CPU, %d MiB", r.Nodes,
		out.Served.Round(100*time.Millisecond), out.Bare.Round(100*time.Millisecond), out.CPU, out.Memory>>20)
	return nil
}
