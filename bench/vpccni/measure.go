package vpccni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Figure is one number that is measured for both systems.
type Figure struct {
	Name string
	Unit string
}

// Workload is a scenario in which a system is measured.
type Workload struct {
	Name    string
	Figures []Figure
	// Alone means that the systems take turns. Otherwise both run at the same time, in separate labs: most
	// of the time is waiting, and the machine's load is the same for both.
	Alone bool
	Runs  int
	setup setup
	// measure returns a value for each figure. The daemons are not started yet.
	measure func(ctx context.Context, b *bed) []float64
}

// patience limits one run.
const patience = 10 * time.Minute

// Run measures a system once.
func (w Workload) Run(ctx context.Context, o Order, system System) (values []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %s: %w", w.Name, system, err)
		}
	}()
	defer must.Catch(&err)
	b := &bed{Order: o, system: system, dir: must.Get(os.MkdirTemp("", "bench-"))}
	defer func() { err = errors.Join(err, b.close()) }()
	b.raise(ctx, w.setup)
	return w.measure(ctx, b), nil
}

// Workloads lists all workloads. They use the warm targets that both systems have by default unless they
// set others.
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

// ColdStart is one node that starts without addresses.
var ColdStart = Workload{
	Name: "cold start", Runs: 3,
	Figures: []Figure{{"vpc-cni-cold-calls", "EC2 calls"}, {"vpc-cni-cold-pod", "s"}},
	setup:   setup{nodes: 1, instanceType: "t3.small"},
	measure: coldStart,
}

// begin starts the only node and returns it once EC2 has assigned what its targets require, at least the
// given numbers of addresses and ENIs, and the daemon can use them.
func (b *bed) begin(ctx context.Context, addresses, enis int) *machine {
	m := b.machines[0]
	m.start(ctx)
	b.until(ctx, fmt.Sprintf("%d addresses on %d ENIs", addresses, enis), func() bool {
		a, e := b.assigned(m)
		return a >= addresses && e >= enis
	})
	pause(ctx, learnTime)
	return m
}

// learnTime is the time in which a daemon learns what EC2 has assigned: the Amazon VPC CNI polls every
// five seconds.
const learnTime = 10 * time.Second

// atOnce measures the time until 30 simultaneous ADDs have returned: the median of several rounds, after a
// warm-up.
func atOnce(ctx context.Context, b *bed) []float64 {
	const adds, rounds = 30, 6
	m := b.begin(ctx, 200, 7)
	var took []float64
	for round := range rounds {
		var all []*libcni.RuntimeConf
		for range adds {
			all = append(all, m.pods.sandbox())
		}
		began := time.Now()
		must.OK(objects.Each(ctx, adds, adds, func(ctx context.Context, i int) error { return m.pods.add(ctx, all[i]) }))
		if round > 0 {
			took = append(took, float64(time.Since(began))/float64(time.Millisecond))
		}
		m.pods.delAll(ctx, all)
	}
	return []float64{took[len(took)/2]}
}

// burst measures the time until more pods than the node has addresses for are served, and the number of
// failed ADDs.
func burst(ctx context.Context, b *bed) []float64 {
	m := b.begin(ctx, 9, 1)
	began := time.Now()
	must.Get(m.pods.serveAll(ctx, 20))
	return []float64{time.Since(began).Seconds(), float64(m.pods.failed.Load())}
}

// coldStart measures the number of EC2 calls of a node up to and including the one that assigns its first
// addresses, and the time from the daemon's start until the first pod is served.
func coldStart(ctx context.Context, b *bed) []float64 {
	m := b.machines[0]
	began := time.Now()
	m.start(ctx)
	b.until(ctx, "first addresses", func() bool { a, _ := b.assigned(m); return a >= 3 })
	const assigns = "AssignPrivateIpAddresses"
	calls := 1 + slices.IndexFunc(b.Cloud.API.CallLog(), func(c vpc.CallRecord) bool { return c.Action == assigns })
	m.pods.serve(ctx)
	return []float64{float64(calls), time.Since(began).Seconds()}
}

// fiveCold measures the time until the last node has served its first pod, and until all nodes have their
// warm addresses: a second ENI with its addresses.
func fiveCold(ctx context.Context, b *bed) []float64 {
	began := time.Now()
	must.OK(objects.Each(ctx, len(b.machines), len(b.machines), func(ctx context.Context, i int) error {
		b.machines[i].start(ctx)
		b.machines[i].pods.serve(ctx)
		return nil
	}))
	first := time.Since(began).Seconds()
	warm := b.within(ctx, began, func() bool {
		return !slices.ContainsFunc(b.machines, func(m *machine) bool {
			a, e := b.assigned(m)
			return a < 6 || e < 2
		})
	})
	return []float64{first, warm}
}

// outage measures the time from the end of an EC2 outage until all waiting pods are served.
func outage(ctx context.Context, b *bed) []float64 {
	const away, more = 30 * time.Second, 8 // two of the pods get a warm address
	m := b.begin(ctx, 2, 1)
	b.Cloud.API.Outage(true)
	served := make(chan error, 1)
	go func() {
		_, err := m.pods.serveAll(ctx, more)
		served <- err
	}()
	pause(ctx, away)
	b.Cloud.API.Outage(false)
	began := time.Now()
	must.OK(<-served)
	return []float64{time.Since(began).Seconds()}
}

// surplus measures the time from the end of a node's last pod until its excess ENIs are deleted.
func surplus(ctx context.Context, b *bed) []float64 {
	m := b.begin(ctx, 9, 1)
	all := must.Get(m.pods.serveAll(ctx, 20))
	b.until(ctx, "three ENIs", func() bool { _, e := b.assigned(m); return e >= 3 })
	pause(ctx, minENIAge)
	m.pods.delAll(ctx, all)
	return []float64{b.within(ctx, time.Now(), func() bool { _, e := b.assigned(m); return e <= 1 })}
}

// minENIAge is the age at which the Amazon VPC CNI may release an ENI.
const minENIAge = 70 * time.Second

// lostAttach measures the time until more pods than a node has addresses for are served, when the reply to
// the attachment of the ENI that they need is lost.
func lostAttach(ctx context.Context, b *bed) []float64 {
	m := b.begin(ctx, 3, 1)
	must.Get(b.Cloud.API.Inject(spec.Fault{Action: "AttachNetworkInterface", Kind: "lostReply", Count: 1}))
	began := time.Now()
	must.Get(m.pods.serveAll(ctx, 5))
	return []float64{time.Since(began).Seconds()}
}
