package vpccni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Figure is one number that both systems are measured by.
type Figure struct {
	Name string
	Unit string
}

// Workload is what a system is measured at.
type Workload struct {
	Name    string
	Figures []Figure
	// Alone: the systems take turns. Else both do it at the same time, in labs of
	// their own: most of it is waiting, and the machine's load is the same for both.
	Alone bool
	Runs  int
	setup setup
	// measure returns a value for each figure. The daemons do not run yet.
	measure func(ctx context.Context, b *bed) ([]float64, error)
}

// patience is how long one run may take, but where a workload says otherwise.
const patience = 10 * time.Minute

// Run measures a system once.
func (w Workload) Run(ctx context.Context, o Order, system System) (values []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := raise(ctx, o, system, w.setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if values, err = w.measure(ctx, b); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", w.Name, system, err)
	}
	return values, nil
}

// Workloads are all, each with the warm targets that both have by default unless
// it says otherwise.
var Workloads = []Workload{
	{
		Name: "30 ADDs at once, addresses at hand", Alone: true, Runs: 3,
		Figures: []Figure{{"vpc-cni-30-adds", "ms"}},
		setup:   setup{nodes: 1, instanceType: "m5.4xlarge", env: map[string]string{"MINIMUM_IP_TARGET": "200", "WARM_IP_TARGET": "1"}},
		measure: atOnce,
	},
	{
		Name: "20 pods at once on a node with 9 addresses", Runs: 3,
		Figures: []Figure{{"vpc-cni-burst", "s"}, {"vpc-cni-burst-failed", "ADDs"}},
		setup:   setup{nodes: 1, instanceType: "m5.large"},
		measure: burst,
	},
	ColdStart,
	{
		Name: "five cold nodes on 0.5 EC2 calls a second and a bucket of 20", Runs: 3,
		Figures: []Figure{{"vpc-cni-five-first", "s"}, {"vpc-cni-five-warm", "s"}},
		setup: setup{nodes: 5, instanceType: "t3.small", limits: map[string]spec.RateLimit{
			"*": {Bucket: 20, Refill: 0.5, Shared: true},
		}},
		measure: fiveCold,
	},
	{
		Name: "five cold nodes on 0.5 EC2 calls a second of each action", Runs: 3,
		Figures: []Figure{{"vpc-cni-five-each-first", "s"}, {"vpc-cni-five-each-warm", "s"}},
		setup: setup{nodes: 5, instanceType: "t3.small", limits: map[string]spec.RateLimit{
			"*": {Bucket: 2, Refill: 0.5},
		}},
		measure: fiveCold,
	},
	{
		Name: "EC2 is away for 30 s while pods wait", Runs: 3,
		Figures: []Figure{{"vpc-cni-outage", "s"}},
		setup:   setup{nodes: 1, instanceType: "m5.large", env: map[string]string{"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "2"}},
		measure: outage,
	},
	{
		Name: "all pods of a node end", Runs: 3,
		Figures: []Figure{{"vpc-cni-surplus", "s"}},
		setup:   setup{nodes: 1, instanceType: "m5.large"},
		measure: surplus,
	},
	{
		Name: "the same with a shrink delay of 30 s", Runs: 1,
		Figures: []Figure{{"vpc-cni-surplus-30s", "s"}},
		setup:   setup{nodes: 1, instanceType: "m5.large", env: map[string]string{"BERTH_SHRINK_DELAY": "30s"}},
		measure: surplus,
	},
	{
		Name: "the reply of an AttachNetworkInterface is lost", Runs: 1,
		Figures: []Figure{{"vpc-cni-lost-attach", "s"}},
		setup:   setup{nodes: 1, instanceType: "t3.small"},
		measure: lostAttach,
	},
}

// ColdStart is one node that starts with nothing.
var ColdStart = Workload{
	Name: "cold start", Runs: 3,
	Figures: []Figure{{"vpc-cni-cold-calls", "EC2 calls"}, {"vpc-cni-cold-pod", "s"}},
	setup:   setup{nodes: 1, instanceType: "t3.small"},
	measure: coldStart,
}

// begin starts the only node and returns it once EC2 has given it what its
// targets ask for: at least so many addresses on so many ENIs, which then take a
// moment to be usable.
func (b *bed) begin(ctx context.Context, addresses, enis int) (*machine, error) {
	m := b.machines[0]
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	err := b.until(ctx, fmt.Sprintf("%d addresses on %d ENIs", addresses, enis), func() bool {
		a, e := b.assigned(m)
		return a >= addresses && e >= enis
	})
	pause(ctx, usable)
	return m, err
}

// usable is the time in which a daemon has learned what EC2 has given it: the
// Amazon VPC CNI looks every five seconds.
const usable = 10 * time.Second

// atOnce is the time in which 30 ADDs that come at once are all answered: the
// median of some rounds, after one that does not count.
func atOnce(ctx context.Context, b *bed) ([]float64, error) {
	const adds, rounds = 30, 6
	m, err := b.begin(ctx, 200, 7)
	if err != nil {
		return nil, err
	}
	var took []float64
	for round := range rounds {
		all, err := m.pods.sandboxes(adds)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := each(adds, func(i int) error { return m.pods.add(ctx, all[i]) }); err != nil {
			return nil, err
		}
		if round > 0 {
			took = append(took, float64(time.Since(began))/float64(time.Millisecond))
		}
		if err := m.pods.delAll(ctx, all); err != nil {
			return nil, err
		}
	}
	return []float64{took[len(took)/2]}, nil
}

// burst is the time in which more pods than the node has addresses for have
// theirs, and how many ADDs failed meanwhile.
func burst(ctx context.Context, b *bed) ([]float64, error) {
	m, err := b.begin(ctx, 9, 1)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	_, err = m.pods.serveAll(ctx, 20)
	return []float64{time.Since(began).Seconds(), float64(m.pods.failed.Load())}, err
}

// coldStart is how many calls of EC2 a node makes until its first addresses are
// assigned, that one included, and the time from the daemon's start until the first pod has its.
func coldStart(ctx context.Context, b *bed) ([]float64, error) {
	m := b.machines[0]
	began := time.Now()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	if err := b.until(ctx, "first addresses", func() bool { a, _ := b.assigned(m); return a >= 3 }); err != nil {
		return nil, err
	}
	const assigns = "AssignPrivateIpAddresses"
	calls := 1 + slices.IndexFunc(b.Cloud.API.CallLog(), func(c vpc.CallRecord) bool { return c.Action == assigns })
	_, err := m.pods.serve(ctx)
	return []float64{float64(calls), time.Since(began).Seconds()}, err
}

// fiveCold is the time until the last node has served its first pod, and until
// all have what they keep warm besides: a second ENI with its addresses.
func fiveCold(ctx context.Context, b *bed) ([]float64, error) {
	began := time.Now()
	if err := each(len(b.machines), func(i int) error {
		if err := b.machines[i].start(ctx); err != nil {
			return err
		}
		_, err := b.machines[i].pods.serve(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	first := time.Since(began).Seconds()
	warm, err := b.within(ctx, began, func() bool {
		for _, m := range b.machines {
			if a, e := b.assigned(m); a < 6 || e < 2 {
				return false
			}
		}
		return true
	})
	return []float64{first, warm}, err
}

// outage is the time from EC2's return until all pods that wait have their
// address.
func outage(ctx context.Context, b *bed) ([]float64, error) {
	const away, more = 30 * time.Second, 8 // of which two have a warm address
	m, err := b.begin(ctx, 2, 1)
	if err != nil {
		return nil, err
	}
	b.Cloud.API.Outage(true)
	served := make(chan error, 1)
	go func() {
		_, err := m.pods.serveAll(ctx, more)
		served <- err
	}()
	pause(ctx, away)
	b.Cloud.API.Outage(false)
	began := time.Now()
	err = <-served
	return []float64{time.Since(began).Seconds()}, err
}

// surplus is the time from the end of a node's last pod until the ENIs that it
// needs no more are gone.
func surplus(ctx context.Context, b *bed) ([]float64, error) {
	m, err := b.begin(ctx, 9, 1)
	if err != nil {
		return nil, err
	}
	all, err := m.pods.serveAll(ctx, 20)
	if err != nil {
		return nil, err
	}
	if err := b.until(ctx, "three ENIs", func() bool { _, e := b.assigned(m); return e >= 3 }); err != nil {
		return nil, err
	}
	pause(ctx, settled)
	if err := m.pods.delAll(ctx, all); err != nil {
		return nil, err
	}
	began := time.Now()
	gone, err := b.within(ctx, began, func() bool {
		_, e := b.assigned(m)
		return e <= 1
	})
	return []float64{gone}, err
}

// settled is the age that the Amazon VPC CNI wants an ENI to have before it gives
// it back.
const settled = 70 * time.Second

// lostAttach is the time in which more pods than a node has addresses for have
// theirs, when the ENI that they need is attached and nobody said so.
func lostAttach(ctx context.Context, b *bed) ([]float64, error) {
	m, err := b.begin(ctx, 3, 1)
	if err != nil {
		return nil, err
	}
	if _, err := b.Cloud.API.Inject(spec.Fault{Action: "AttachNetworkInterface", Kind: "lostReply", Count: 1}); err != nil {
		return nil, err
	}
	began := time.Now()
	_, err = m.pods.serveAll(ctx, 5)
	return []float64{time.Since(began).Seconds()}, err
}
