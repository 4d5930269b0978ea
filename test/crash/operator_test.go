package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	_ "github.com/berthnet/berth/internal/operator/nodenetwork" // registers its failpoints
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/test/harness"
)

// raiseOperators starts a lab in operator mode. Nodes keep one address warm and
// leave the primary ENI to themselves. Six pods fill the two further ENIs of a
// t3.small.
func raiseOperators(t *testing.T, nodes, operators int) *lab.Lab {
	return harness.Raise(t, lab.Options{
		Mode: lab.OperatorMode, Nodes: nodes, InstanceType: "t3.small", OperatorCount: operators,
		OperatorArgs: append([]string{
			"--shrink-delay=" + shrinkDelay.String(), "--listing-interval=2s", "--settle-time=2s",
			"--orphan-age=3s", "--orphan-interval=1s", "--log-level=debug",
		}, leases(operators)...),
		DaemonArgs: []string{
			"--pre-allocate=1", "--cni-chain=", "--log-level=debug", "--cooling-period=" + cooling.String(),
			"--netns-grace=1s", "--repair-interval=1s", "--warm-wait=5s",
		},
	})
}

// operatorPods is how many pods a node of raiseOperators has addresses for.
const operatorPods = 6

// ofOperator tells whether berth-operator passes a failpoint: what internal/eni
// and internal/operator register.
func ofOperator(name string) bool {
	return strings.HasPrefix(name, "eni.") || strings.HasPrefix(name, "operator.") && !strings.HasPrefix(name, "operator.pool.")
}

func operatorFailpoints() []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool { return !ofOperator(name) })
}

// relaxed waits until every node is back to one further ENI with the one warm
// address: all else that the operators got has gone back.
func relaxed(ctx context.Context, l *lab.Lab) error {
	return eventually(ctx, func() error {
		var errs []error
		books := l.Books()
		for _, n := range l.Nodes() {
			addresses := 0
			enis := books.InstanceENIs(n.InstanceID)
			for _, e := range enis {
				addresses += len(e.Secondary)
			}
			if len(enis) != 2 || addresses != 1 {
				errs = append(errs, fmt.Errorf("%s has %d ENIs with %d addresses, expected 2 with the warm one alone", n.Name, len(enis), addresses))
			}
		}
		return errors.Join(errs...)
	})
}

// TestKillOperatorAtEveryFailpoint kills the only operator with SIGKILL at
// every step of growth, publication, the releasing handshake and shrink in
// turn. Pods are retried as a kubelet does; after the restart EC2's books, the
// NodeNetworks, the nodes and their pods must agree, and after the last pod
// every node must be back to its one warm address.
func TestKillOperatorAtEveryFailpoint(t *testing.T) {
	t.Parallel() // most of the time it waits for a process to start

	l := raiseOperators(t, 2, 1)
	book := newLedger()
	names := operatorFailpoints()
	if len(names) < 20 {
		t.Fatalf("only %d failpoints of the operator are registered: %v", len(names), names)
	}
	for _, name := range names {
		if !t.Run(name, func(t *testing.T) { killOperatorAt(t, l, book, name) }) {
			break // the lab is no longer what the next one expects
		}
	}
	t.Logf("%d failpoints, %d pods made, %d removed", len(names), book.adds, book.dels)
}

func killOperatorAt(t *testing.T, l *lab.Lab, book *ledger, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	victim, n := l.Operators()[0], l.Nodes()[0]
	if err := victim.Stop(patience); err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.HasPrefix(name, "eni.collect."):
		leaveOrphan(t, l, n)
	case strings.HasPrefix(name, "eni.tag."):
		leaveMistagged(t, l, n)
	}
	l.OperatorEnv = map[string]string{failpoint.EnvVar: name + "=kill"}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	died := victim.Exited()
	restarted := make(chan error, 1)
	go func() {
		select {
		case <-died:
			l.OperatorEnv = nil
			restarted <- victim.Start()
		case <-ctx.Done():
			restarted <- fmt.Errorf("failpoint %s was never reached", name)
		}
	}()
	exercise(ctx, t, book, n, operatorPods)
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if err := victim.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := relaxed(ctx, l); err != nil {
		t.Fatalf("ENIs do not go back: %v", err)
	}
	harness.Settle(t, l)
}

// TestOperatorSoak makes and removes pods at random on three nodes while two
// operators and the daemons are killed or stand still, leaders change in the
// middle of calls, the API server dies, and EC2 misbehaves and at times is
// away. Double use of an address is seen at once; at the end EC2's books, the
// NodeNetworks, the nodes and their pods must agree, and every node must be back
// to its one warm address.
func TestOperatorSoak(t *testing.T) {
	t.Parallel()

	seed := fromEnv(t, "BERTH_SOAK_SEED", uint64(time.Now().UnixNano()))
	ops := int(fromEnv(t, "BERTH_SOAK_OPS", 500))
	fmt.Printf("operator soak: BERTH_SOAK_SEED=%d BERTH_SOAK_OPS=%d\n", seed, ops)

	l := raiseOperators(t, 3, 2)
	book := newLedger()
	for _, f := range faults {
		if _, err := l.Cloud.Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
	defer cancel()

	stop := make(chan struct{})
	var trouble, workers sync.WaitGroup
	m := &meddler{t: t, lab: l, dice: rand.New(rand.NewPCG(seed, 0)), stop: stop, operator: operatorFailpoints()}
	trouble.Go(func() { m.run(ctx) })
	for i, n := range l.Nodes() {
		workers.Go(func() {
			s := &soaker{node: n, late: time.Now().Add(soakLong), book: book, dice: rand.New(rand.NewPCG(seed, uint64(i+1))), most: operatorPods}
			s.run(ctx, t, ops/len(l.Nodes()))
		})
	}
	workers.Wait()
	close(stop)
	trouble.Wait()

	l.Cloud.ClearFaults()
	harness.Settle(t, l)
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			if err := book.del(ctx, n, p.Name); err != nil {
				t.Error(err)
			}
		}
	}
	if err := relaxed(ctx, l); err != nil {
		t.Fatalf("ENIs do not go back: %v", err)
	}
	harness.Settle(t, l)
	fmt.Printf("operator soak: %d pods made, %d removed; %s\n", book.adds, book.dels, m.tally())
	if book.adds < ops/4 {
		t.Errorf("the soak did too little: %d pods in %d operations", book.adds, ops)
	}
}

// meddler makes the trouble of an operator soak.
type meddler struct {
	t    *testing.T
	lab  *lab.Lab
	dice *rand.Rand
	stop <-chan struct{}

	operator, daemon []string // failpoints; without any a program comes back unarmed

	outages, apiOutages, pauses, operatorKills, daemonKills int
}

func (m *meddler) tally() string {
	return fmt.Sprintf("operators killed %d times and halted %d times, daemons killed %d times, API server %d times, EC2 away %d times",
		m.operatorKills, m.pauses, m.daemonKills, m.apiOutages, m.outages)
}

// pause lets the trouble last, or tells that the soak is over.
func (m *meddler) pause(ctx context.Context, most time.Duration) bool {
	select {
	case <-m.stop:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(m.dice.Int64N(int64(most)))): // the pace of the trouble, not a wait for anything
		return true
	}
}

func (m *meddler) ok(err error) {
	if err != nil {
		m.t.Error(err)
	}
}

// okUnlessGone is ok of a signal to a program that may just have come to its
// failpoint, or lost its Lease.
func (m *meddler) okUnlessGone(o *lab.Operator, err error) {
	if !errors.Is(err, os.ErrProcessDone) && o.Running() {
		m.ok(err)
	}
}

func (m *meddler) run(ctx context.Context) {
	m.makeHasty()
	for m.pause(ctx, 800*time.Millisecond) {
		o := m.lab.Operators()[m.dice.IntN(len(m.lab.Operators()))]
		dice := m.dice.IntN(8)
		if dice == 0 && m.lab.Cloud == nil {
			dice = 4
		}
		switch dice {
		case 0:
			m.outages++
			m.lab.Cloud.Outage(true)
			m.pause(ctx, 2*time.Second)
			m.lab.Cloud.Outage(false)
		case 1:
			m.apiOutages++
			m.ok(m.lab.Kube.KillAPIServer())
			m.pause(ctx, 2*time.Second)
			m.ok(m.lab.Kube.StartAPIServer(ctx))
		case 2, 3: // for longer than its lease: it comes back as an old leader
			if !o.Running() {
				continue
			}
			if err := o.Pause(); err != nil {
				m.okUnlessGone(o, err)
				break
			}
			m.pauses++
			m.pause(ctx, 6*time.Second)
			m.okUnlessGone(o, o.Resume())
		case 4:
			m.daemonKills++
			m.ok(m.lab.Nodes()[m.dice.IntN(len(m.lab.Nodes()))].Kill())
		default:
			m.operatorKills++
			m.ok(o.Kill())
		}
		m.restart(true)
	}
	m.restart(false)
}

// makeHasty begins the trouble: operators that stay leaders for long are good for
// raising a lab on a machine that stands still at times, and for nothing else.
func (m *meddler) makeHasty() {
	for _, o := range m.lab.Operators() {
		m.ok(o.Stop(patience))
	}
	for _, o := range m.lab.Operators() {
		m.ok(o.Start(hasty...))
	}
}

// restart starts what does not run. Half of it comes back armed to die at a
// failpoint, while the trouble lasts.
func (m *meddler) restart(armed bool) {
	for _, n := range m.lab.Nodes() {
		if !armed && n.Running() && len(m.daemon) > 0 {
			m.ok(n.Stop(patience)) // it may be armed
		}
		if !n.Running() {
			n.Env = m.arms(m.daemon, armed)
			m.ok(n.Start())
		}
	}
	for _, o := range m.lab.Operators() {
		if !armed && o.Running() {
			m.ok(o.Stop(patience)) // it may be armed
		}
		if o.Running() {
			continue
		}
		m.lab.OperatorEnv = m.arms(m.operator, armed)
		var more []string
		if armed {
			more = hasty
		}
		m.ok(o.Start(more...))
	}
}

// arms is what makes a program die at one of some failpoints, or at none.
func (m *meddler) arms(names []string, armed bool) map[string]string {
	if !armed || len(names) == 0 || m.dice.IntN(2) == 0 {
		return nil
	}
	return map[string]string{failpoint.EnvVar: fmt.Sprintf("%s=kill@%d", names[m.dice.IntN(len(names))], 1+m.dice.IntN(3))}
}
