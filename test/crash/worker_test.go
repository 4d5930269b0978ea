package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// worker adds and removes the pods of one node.
type worker struct {
	*round
	lab    *lab.Lab
	node   *node.Node
	owners *addressOwners
	nics   *nicPool     // nil if pods have no NICs
	users  *egressUsers // nil without Egresses

	policies *policyUsers // nil where there are none
	dice     *rand.Rand
	atOnce   int       // maximum concurrent operations
	late     time.Time // after this, two thirds of the operations are enough
	pods     []string
	shapes   map[string]shape // shapes of pods
	next     int

	mu    sync.Mutex // guards below
	given []string   // pods given up
	stay  []string   // pods that were restarted
}

func (w *worker) run(ctx context.Context, ops int) {
	done := 0
	more := func() bool {
		return done < ops && ctx.Err() == nil && !w.over() && (done < ops*2/3 || time.Now().Before(w.late))
	}
	w.shapes = map[string]shape{}
	for more() {
		// Add or remove pods towards a random number of pods.
		want := w.dice.IntN(w.mode.pods + 1)
		for len(w.pods) != want && more() {
			if len(w.pods) < want {
				done += w.some(want-len(w.pods), func() func() { return w.add(ctx) })
			} else {
				done += w.some(len(w.pods)-want, func() func() { return w.del(ctx) })
			}
			for range w.policies.edits() {
				w.policies.step(ctx, w.dice)
			}
			w.policies.rest(ctx, w.dice)
			for range w.edits() {
				w.users.step(ctx, w.dice, w.node)
			}
			if w.mode.loses && w.dice.IntN(lossOdds) == 0 {
				w.loseNode(ctx)
			}
			if w.hot && w.nics != nil && !w.nics.branches && len(w.pods) > 0 && w.dice.IntN(hotOdds) == 0 {
				w.hotplug(ctx)
			}
		}
	}
}

// some runs up to most operations of begin concurrently.
func (w *worker) some(most int, begin func() func()) int {
	n := 1 + w.dice.IntN(min(w.atOnce, most))
	var wg sync.WaitGroup
	for range n {
		wg.Go(begin())
	}
	wg.Wait()
	w.pods = slices.DeleteFunc(w.pods, func(p string) bool { return slices.Contains(w.given, p) })
	w.pods = append(w.pods, w.stay...)
	w.given, w.stay = nil, nil
	return n
}

func (w *worker) add(ctx context.Context) func() {
	name := fmt.Sprintf("p%d", w.next)
	w.next++
	if w.users != nil {
		return w.addClient(ctx, name)
	}
	if w.policies != nil {
		o := drawPod(w.dice)
		w.pods = append(w.pods, name)
		return func() {
			w.operation(added, w.node, name, func() error { return w.policies.add(ctx, w.owners, w.node, name, o) })
		}
	}
	s := w.nics.draw(w.dice)
	w.pods, w.shapes[name] = append(w.pods, name), s
	return func() {
		w.operation(added, w.node, name, func() error { return w.owners.add(ctx, w.node, name, s) })
	}
}

// edits returns the number of users' changes between two steps.
func (w *worker) edits() int {
	if w.users == nil {
		return 0
	}
	return 1 + w.dice.IntN(3)
}

// addClient adds a pod that may be a client of Egresses.
func (w *worker) addClient(ctx context.Context, name string) func() {
	o := w.users.draw(w.dice)
	w.pods = append(w.pods, name)
	return func() {
		w.operation(added, w.node, name, func() error {
			there, err := w.users.addClient(ctx, w.owners, w.node, name, o)
			if !there {
				w.mu.Lock()
				w.given = append(w.given, name)
				w.mu.Unlock()
			}
			return err
		})
	}
}

func (w *worker) del(ctx context.Context) func() {
	i := w.dice.IntN(len(w.pods))
	name := w.pods[i]
	w.pods = append(w.pods[:i], w.pods[i+1:]...)
	if w.policies != nil && w.dice.IntN(restartOdds) == 0 {
		return func() {
			w.operation(added, w.node, name, func() error { return w.policies.restart(ctx, w.owners, w.node, name) })
			w.mu.Lock()
			defer w.mu.Unlock()
			w.stay = append(w.stay, name)
		}
	}
	s, forced := w.shapes[name], w.nics != nil && w.dice.IntN(forceOdds) == 0
	delete(w.shapes, name)
	return func() {
		w.operation(deleted, w.node, name, func() error {
			if forced {
				w.tally.count(forcedDelete, 1)
				return w.owners.force(ctx, w.lab, w.node, name)
			}
			if w.policies != nil {
				return w.policies.del(ctx, w.owners, w.node, name)
			}
			return w.owners.del(ctx, w.node, name)
		})
		w.nics.back(s)
	}
}

// In modes with ports, one of lossOdds steps loses a node, and one of forceOdds DELs is for a pod whose object is
// already gone.
const (
	lossOdds  = 20
	forceOdds = 5
	// restartOdds is how many DELs of a pod with network policies there are for each sandbox that is replaced.
	restartOdds = 3
)

// loseNode removes the node with all its pods, and adds another one with the same name.
func (w *worker) loseNode(ctx context.Context) {
	w.roster.Lock()
	defer w.roster.Unlock()
	name := w.node.Name
	for _, p := range w.pods {
		w.owners.free(time.Now(), name+"/"+p)
		w.nics.back(w.shapes[p])
	}
	w.pods, w.shapes = nil, map[string]shape{}
	w.tally.count(nodeLoss, 1)
	w.ok("lose a node", w.timed("lose a node", name, func() error {
		if err := errors.Join(w.lab.RemoveNode(name), w.lab.WaitReports(ctx), w.lab.RemoveNodeObject(ctx, name)); err != nil {
			return err
		}
		n, err := w.lab.AddNode(name)
		if err != nil {
			return err
		}
		w.node = n
		setHybrid(w.lab, name)
		return n.WaitReady(ctx)
	}))
}
