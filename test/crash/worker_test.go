package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/lab/run/node"
)

// worker makes and removes the pods of one node.
type worker struct {
	*round
	node   *node.Node
	book   *ledger
	dice   *rand.Rand
	atOnce int       // the most operations at a time
	late   time.Time // when two thirds of the operations are enough
	pods   []string
	next   int
}

func (w *worker) run(ctx context.Context, ops int) {
	done := 0
	more := func() bool {
		return done < ops && ctx.Err() == nil && !w.over() && (done < ops*2/3 || time.Now().Before(w.late))
	}
	for more() {
		// Mostly towards a target that wanders between empty and full.
		want := w.dice.IntN(w.mode.pods + 1)
		for len(w.pods) != want && more() {
			if len(w.pods) < want {
				done += w.some(want-len(w.pods), func() func() { return w.add(ctx) })
			} else {
				done += w.some(len(w.pods)-want, func() func() { return w.del(ctx) })
			}
		}
	}
}

// some makes some operations at once, each of which begin chooses.
func (w *worker) some(most int, begin func() func()) int {
	n := 1 + w.dice.IntN(min(w.atOnce, most))
	var wg sync.WaitGroup
	for range n {
		wg.Go(begin())
	}
	wg.Wait()
	return n
}

func (w *worker) add(ctx context.Context) func() {
	name := fmt.Sprintf("p%d", w.next)
	w.next++
	w.pods = append(w.pods, name)
	return func() {
		w.operation(added, w.node, name, func() error { return w.book.add(ctx, w.node, name) })
	}
}

func (w *worker) del(ctx context.Context) func() {
	i := w.dice.IntN(len(w.pods))
	name := w.pods[i]
	w.pods = append(w.pods[:i], w.pods[i+1:]...)
	return func() {
		w.operation(deleted, w.node, name, func() error { return w.book.del(ctx, w.node, name) })
	}
}
