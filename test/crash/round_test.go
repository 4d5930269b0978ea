package crash

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// faults are the cloud faults in a soak.
var faults = []spec.Fault{
	{Action: "*", Kind: "throttle", Probability: 0.05},
	{Action: "*", Kind: "lostReply", Probability: 0.03},
	{Action: "*", Kind: "lostRequest", Probability: 0.03},
	{Action: "*", Kind: "error", Code: "InternalError", Probability: 0.03},
	{Action: "Describe*", Kind: "latency", Latency: spec.Duration(30 * time.Millisecond), Probability: 0.3},
}

// Time limits. On a slow machine a round's operations end when two thirds are made; the other limits only end hanging
// rounds.
const (
	operationsLimit = 12 * time.Minute
	roundLimit      = 40 * time.Minute
	endLimit        = 90 * time.Second // for a program that is told to end; shorter than hack/soak.sh waits after an interrupt
	hangLimit       = time.Hour        // for steps without a specific limit
)

// round is a lab with a seed: operations with troubles, then rest, then an empty lab.
type round struct {
	place
	mode     mode
	tally    *tally
	end      time.Time       // no operation starts after this time; zero for no limit
	soak     context.Context // ends when the soak is interrupted
	hot      bool            // add and remove NICs of running pods
	keepLogs string          // directory for the logs of a failed round; none if empty

	operations atomic.Int64 // completed operations, which pace the troubles

	roster sync.Mutex // held while nodes are added or removed, and by code that needs them to stay

	mu    sync.Mutex // guards all below
	found []string   // violations, with commands that reproduce them
}

// violate records a violation and prints it immediately. After an interruption of the soak, failures and unfinished
// work are not violations.
func (r *round) violate(k kind, text string) {
	if r.soak.Err() != nil && k != duplicate && k != tooSoon && k != badLog && k != stuck {
		return
	}
	fmt.Printf("VIOLATION  %v: %s: %s\n", r.place, k, text)
	r.tally.violate(violation{r.place, k, text})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = append(r.found, fmt.Sprintf("%v: %s: %s\nagain: %s", r.place, k, text, r.again()))
}

func (r *round) violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}

func (r *round) ok(what string, err error) {
	if err != nil {
		r.violate(other, fmt.Sprintf("%s: %v", what, err))
	}
}

// terminate tells a program to end.
func (r *round) terminate(p *proc.Process) {
	if err := p.Stop(endLimit); err != nil {
		r.violate(stuck, err.Error())
	}
}

// timed runs a step, and records how long it took unless interrupted.
func (r *round) timed(what, pod string, do func() error) error {
	begun := time.Now()
	err := do()
	if err == nil || r.soak.Err() == nil {
		r.tally.took(r.place, what, pod, time.Since(begun), err)
	}
	return err
}

func (r *round) operation(e event, n *node.Node, pod string, do func() error) {
	r.ok(string(e), r.timed(string(e), n.Name+"/"+pod, do))
	r.operations.Add(1)
}

// make runs the round, and gives up if it hangs.
func (r *round) make() {
	r.tally.begin(r.place)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.play()
	}()
	select {
	case <-done:
	case <-time.After(hangLimit): // all steps that should end have their own limits
		stacks := make([]byte, 1<<20)
		r.violate(other, fmt.Sprintf("the round has hung for %v\n%s", hangLimit, stacks[:runtime.Stack(stacks, true)]))
	}
	if len(r.violations()) > 0 {
		r.tally.count(failedRound, 1)
	}
}

func (r *round) play() {
	ctx, cancel := context.WithTimeout(r.soak, roundLimit)
	defer cancel()
	var l *lab.Lab
	err := r.timed("raise", "", func() (err error) {
		l, err = harness.Start(ctx, r.mode.lab(3, 2))
		return err
	})
	r.ok("raise", err)
	if err != nil {
		return
	}
	defer r.finish(l)
	for _, f := range r.mode.faults {
		_, err := l.Cloud.API.Inject(f)
		r.ok("inject", err)
	}
	nics, err := newNICPool(ctx, l)
	if r.ok("create NICs for pods", err); err != nil {
		return
	}
	users, err := newEgressUsers(ctx, r, l)
	if r.ok("namespaces of Egresses", err); err != nil {
		return
	}
	policies, err := newPolicyUsers(ctx, r, l)
	if r.ok("namespaces of policies", err); err != nil {
		return
	}
	owners := newAddressOwners(r.mode, r.violate)
	r.operate(ctx, l, owners, nics, users, policies)
	if l.Cloud != nil {
		r.tally.met(l.Cloud.API.FaultsMet())
		l.Cloud.API.ClearFaults()
	}
	if model, ok := l.Ports.(*portcloud.Model); ok {
		model.Neutron.HTTP.ClearFaults()
	}
	if r.soak.Err() == nil {
		r.rest(ctx, l, owners, users, policies)
		r.ok("users' ports", nics.there(ctx, l))
	}
}

// operate adds and removes pods at random during troubles, with a worker for each node.
func (r *round) operate(ctx context.Context, l *lab.Lab, owners *addressOwners, nics *nicPool, users *egressUsers, policies *policyUsers) {
	before, late := r.tally.copy(), time.Now().Add(operationsLimit)
	stop := make(chan struct{})
	var trouble, workers sync.WaitGroup
	m := &troublemaker{
		round: r, plan: newPlan(r.mode, r.seed), lab: l, dice: rand.New(rand.NewPCG(r.seed, math.MaxUint64)), stop: stop,
		armed: map[*proc.Process]bool{}, missed: map[event]int{}, policies: policies,
	}
	trouble.Go(func() { m.run(ctx) })
	nodes := l.Nodes()
	calm := policies.begin(ctx)
	if nics != nil {
		trouble.Go(func() { r.watchPorts(l, nics, stop) })
		for _, n := range nodes {
			setHybrid(l, n.Name)
		}
	}
	for i, n := range nodes {
		workers.Go(func() {
			w := &worker{round: r, lab: l, node: n, late: late, owners: owners, nics: nics, users: users, policies: policies, atOnce: 4, dice: rand.New(rand.NewPCG(r.seed, uint64(i+1)))}
			w.run(ctx, (r.ops+i)/len(nodes))
		})
	}
	workers.Wait()
	close(stop)
	trouble.Wait()
	calm(owners)
	if r.over() || r.soak.Err() != nil {
		return
	}
	if owners.adds < r.ops/4 {
		r.violate(other, fmt.Sprintf("too little progress: %d pods in %d operations", owners.adds, r.ops))
	}
	killed := r.tally.copy()
	for e := range killed {
		killed[e] += m.missed[e] - before[e]
	}
	r.ok("pace of the troubles", r.mode.paced(int(r.operations.Load()), killed))
}

// over reports whether the soak's time is over.
func (r *round) over() bool { return !r.end.IsZero() && time.Now().After(r.end) }

// rest waits until all views agree, removes the pods, and waits until nodes hold only what the policy keeps.
func (r *round) rest(ctx context.Context, l *lab.Lab, owners *addressOwners, users *egressUsers, policies *policyUsers) {
	r.ok("ready", r.timed("ready", "", func() error { return l.WaitReady(ctx) }))
	r.settle(ctx, l, "settle")
	if l.Ports != nil {
		r.tryNICs(ctx, l)
	}
	if users != nil {
		users.quiet(ctx)
		r.ok("delete all Egresses", users.removeAll(ctx))
		r.settle(ctx, l, "settle without Egresses")
		users.quiet(ctx)
	}
	if policies != nil {
		r.ok("delete all policies", policies.removeAll(ctx))
		r.settle(ctx, l, "settle without policies")
	}
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			r.operation(deleted, n, p.Name, func() error { return owners.del(ctx, n, p.Name) })
		}
	}
	emptying, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.timed("empty", "", func() error { return r.mode.empty(emptying, l) }); err != nil {
		r.violate(leak, fmt.Sprintf("not everything was released after %v: %v", patience, err))
	}
	r.settle(ctx, l, "settle empty")
}

// settle waits until the lab is consistent (oracle.Check).
func (r *round) settle(ctx context.Context, l *lab.Lab, what string) {
	ctx, cancel := context.WithTimeout(ctx, harness.Rest)
	defer cancel()
	if err := r.timed(what, "", func() error { return oracle.Wait(ctx, l) }); err != nil {
		k := disagreement
		if strings.Contains(err.Error(), "leaked") {
			k = leak
		}
		r.violate(k, fmt.Sprintf("still not at rest after %v: %v", harness.Rest, err))
	}
}

// finish checks the logs and removes the lab.
func (r *round) finish(l *lab.Lab) {
	for _, p := range harness.Programs(l) {
		if err := harness.BadLog(p); err != nil {
			r.violate(badLog, err.Error())
		}
	}
	r.ok("close", l.Close())
	r.ok("the lab itself", l.Err())
	if r.keepLogs != "" && len(r.violations()) > 0 {
		r.ok("keep logs", r.keep(l.Dir))
	}
	r.ok("remove", os.RemoveAll(l.Dir))
	if r.mode.needsMachine() {
		r.ok("forget its objects", forget(l))
	}
}

// keep saves the logs of a lab, and its violations.
func (r *round) keep(dir string) error {
	if err := os.MkdirAll(r.keepLogs, 0o755); err != nil {
		return err
	}
	text := strings.Join(r.violations(), "\n\n") + "\n"
	errs := []error{os.WriteFile(filepath.Join(r.keepLogs, "violations.txt"), []byte(text), 0o644)}
	errs = append(errs, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".log" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(strings.TrimPrefix(path, dir+"/"), "/", "-")
		return os.WriteFile(filepath.Join(r.keepLogs, name), data, 0o644)
	}))
	return errors.Join(errs...)
}
