package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// gatherWindow is how long the first question of a call waits for others.
const gatherWindow = 10 * time.Millisecond

// gatherer answers questions about single things by calls about many: what is
// asked while a call is under way goes into the next.
type gatherer[V any] struct {
	clock   clock.Clock
	spacing time.Duration                                                  // from the beginning of a call to that of the next
	spawn   func(func(context.Context))                                    // runs what outlives a caller
	call    func(ctx context.Context, keys []string) (map[string]V, error) // keys that it leaves out have the zero V

	mu      sync.Mutex // guards all below
	pending map[string][]chan answer[V]
	running bool
	last    time.Time // when the last call began
}

type answer[V any] struct {
	value V
	at    time.Time
	err   error
}

// ask asks about one key, as of now or later.
func (g *gatherer[V]) ask(ctx context.Context, key string) (answer[V], error) {
	c := make(chan answer[V], 1)
	g.mu.Lock()
	if g.pending == nil {
		g.pending = map[string][]chan answer[V]{}
	}
	g.pending[key] = append(g.pending[key], c)
	if !g.running {
		g.running = true
		g.spawn(g.run)
	}
	g.mu.Unlock()
	select {
	case a := <-c:
		return a, a.err
	case <-ctx.Done():
		return answer[V]{}, ctx.Err()
	}
}

// run makes calls while something is asked.
func (g *gatherer[V]) run(ctx context.Context) {
	for {
		g.mu.Lock()
		wait := max(gatherWindow, g.last.Add(g.spacing).Sub(g.clock.Now()))
		g.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-g.clock.After(wait):
		}
		g.mu.Lock()
		asked, now := g.pending, g.clock.Now()
		g.pending, g.last = nil, now
		if len(asked) == 0 {
			g.running = false
		}
		g.mu.Unlock()
		if len(asked) == 0 {
			return
		}
		got, err := g.call(ctx, slices.Collect(maps.Keys(asked)))
		for k, list := range asked {
			for _, c := range list {
				c <- answer[V]{got[k], now, err}
			}
		}
	}
}
