package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/test/harness"
)

// soakPods is how many pods a node is asked for at most: all that a t3.small
// has addresses for, so that cooling and exhaustion are met all the time.
const soakPods = 9

// faults are the cloud's troubles that a soak lives with, each at the odds that
// it gives.
var faults = []spec.Fault{
	{Action: "*", Kind: "throttle", Probability: 0.05},
	{Action: "*", Kind: "lostReply", Probability: 0.03},
	{Action: "*", Kind: "lostRequest", Probability: 0.03},
	{Action: "*", Kind: "error", Code: "InternalError", Probability: 0.03},
	{Action: "Describe*", Kind: "latency", Latency: spec.Duration(30 * time.Millisecond), Probability: 0.3},
}

// TestSoak makes and removes pods at random on three nodes, one worker each,
// while daemons are killed at random moments and failpoints, EC2 misbehaves
// and at times is away. Double use of an address is seen at once; at the end
// everything must agree and every ENI must have gone back.
func TestSoak(t *testing.T) {
	seed := fromEnv(t, "BERTH_SOAK_SEED", uint64(time.Now().UnixNano()))
	ops := int(fromEnv(t, "BERTH_SOAK_OPS", 2000))
	fmt.Printf("soak: BERTH_SOAK_SEED=%d BERTH_SOAK_OPS=%d\n", seed, ops)

	l := raise(t, 3)
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
	trouble.Go(func() { makeTrouble(ctx, t, l, rand.New(rand.NewPCG(seed, 0)), stop) })
	for i, n := range l.Nodes() {
		workers.Go(func() {
			s := &soaker{node: n, late: time.Now().Add(soakLong), book: book, dice: rand.New(rand.NewPCG(seed, uint64(i+1))), most: soakPods}
			s.run(ctx, t, ops/len(l.Nodes()))
		})
	}
	workers.Wait()
	close(stop)
	trouble.Wait()

	l.Cloud.ClearFaults()
	l.Cloud.Outage(false)
	for _, n := range l.Nodes() {
		if err := n.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	harness.Settle(t, l)
	kills := 0
	for _, n := range l.Nodes() {
		kills += n.Starts() - 1
		for _, p := range n.Pods() {
			if err := book.del(ctx, n, p.Name); err != nil {
				t.Error(err)
			}
		}
	}
	if err := emptied(ctx, l); err != nil {
		t.Fatalf("ENIs do not go back: %v", err)
	}
	harness.Settle(t, l)
	fmt.Printf("soak: %d pods made, %d removed, daemons killed %d times\n", book.adds, book.dels, kills)
	if kills == 0 || book.adds < ops/4 {
		t.Errorf("the soak did too little: %d kills, %d pods in %d operations", kills, book.adds, ops)
	}
}

func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is %q, expected a number", name, text)
	}
	return v
}

// soaker makes and removes the pods of one node.
type soaker struct {
	node *node.Node
	book *ledger
	dice *rand.Rand
	most int       // pods at a time
	late time.Time // when two thirds of the operations are enough
	pods []string
	next int
}

func (s *soaker) run(ctx context.Context, t *testing.T, ops int) {
	done := 0
	more := func() bool {
		return done < ops && ctx.Err() == nil && (done < ops*2/3 || time.Now().Before(s.late))
	}
	for more() {
		// Mostly towards a target that wanders between empty and full.
		want := s.dice.IntN(s.most + 1)
		for len(s.pods) != want && more() {
			if len(s.pods) < want {
				done += s.addSome(ctx, t, want-len(s.pods))
			} else {
				done += s.delSome(ctx, t, len(s.pods)-want)
			}
		}
	}
}

// addSome makes up to four pods at once.
func (s *soaker) addSome(ctx context.Context, t *testing.T, most int) int {
	n := 1 + s.dice.IntN(min(4, most))
	var wg sync.WaitGroup
	for range n {
		name := fmt.Sprintf("p%d", s.next)
		s.next++
		s.pods = append(s.pods, name)
		wg.Go(func() {
			if err := s.book.add(ctx, t, s.node, name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return n
}

func (s *soaker) delSome(ctx context.Context, t *testing.T, most int) int {
	n := 1 + s.dice.IntN(min(4, most))
	var wg sync.WaitGroup
	for range n {
		i := s.dice.IntN(len(s.pods))
		name := s.pods[i]
		s.pods = append(s.pods[:i], s.pods[i+1:]...)
		wg.Go(func() {
			if err := s.book.del(ctx, s.node, name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return n
}

// makeTrouble kills daemons and takes EC2 away until stop is closed. Half of
// the killed daemons come back armed to die once more at a failpoint.
func makeTrouble(ctx context.Context, t *testing.T, l *lab.Lab, dice *rand.Rand, stop <-chan struct{}) {
	names := daemonFailpoints()
	pause := func(most time.Duration) bool {
		select {
		case <-stop:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(time.Duration(dice.Int64N(int64(most)))): // the pace of the trouble, not a wait for anything
			return true
		}
	}
	for pause(800 * time.Millisecond) {
		n := l.Nodes()[dice.IntN(len(l.Nodes()))]
		switch dice.IntN(8) {
		case 0:
			l.Cloud.Outage(true)
			pause(time.Second)
			l.Cloud.Outage(false)
		case 1:
			if err := n.Stop(patience); err != nil {
				t.Error(err)
			}
		default:
			if err := n.Kill(); err != nil {
				t.Error(err)
			}
		}
		for _, n := range l.Nodes() {
			if n.Running() {
				continue
			}
			n.Env = nil
			if dice.IntN(2) == 0 {
				n.Env = map[string]string{failpoint.EnvVar: fmt.Sprintf("%s=kill@%d", names[dice.IntN(len(names))], 1+dice.IntN(3))}
			}
			if err := n.Start(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, n := range l.Nodes() {
		if err := n.Stop(patience); err != nil {
			t.Error(err)
		}
		n.Env = nil
		if err := n.Start(); err != nil {
			t.Error(err)
		}
	}
}
