package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// gatherWindow is how long the first request of a call waits for more requests.
const gatherWindow = 10 * time.Millisecond

// gatherer batches requests for single keys. Requests made while a call is in flight go into the next call, in the order of
// their arrival.
type gatherer[V any] struct {
	clock   clock.Clock
	spacing time.Duration                                                  // between the starts of two calls
	most    int                                                            // keys of a call; 0: any number
	spawn   func(func(context.Context))                                    // runs work that may outlive its caller
	call    func(ctx context.Context, keys []string) (map[string]V, error) // omitted keys have the zero V

	mu      sync.Mutex // guards all below
	pending map[string][]chan answer[V]
	order   []string // keys of pending, and abandoned ones
	running bool
	last    time.Time // start of the last call
}

type answer[V any] struct {
	value V
	at    time.Time
	err   error
}

// ask requests the value of one key, as of now or later. The error is errListed if listed is closed first.
func (g *gatherer[V]) ask(ctx context.Context, key string, listed <-chan struct{}) (answer[V], error) {
	c := make(chan answer[V], 1)
	g.mu.Lock()
	if g.pending == nil {
		g.pending = map[string][]chan answer[V]{}
	}
	if g.pending[key] == nil {
		g.order = append(g.order, key)
	}
	g.pending[key] = append(g.pending[key], c)
	if !g.running {
		g.running = true
		g.spawn(g.run)
	}
	g.mu.Unlock()
	select {
	case a := <-c:
		clock.Turn(g.clock, key, 0)
		return a, a.err
	case <-listed:
		g.abandon(key, c)
		return answer[V]{}, errListed
	case <-ctx.Done():
		g.abandon(key, c)
		return answer[V]{}, ctx.Err()
	}
}

// abandon withdraws a request, so that no call is made for it alone.
func (g *gatherer[V]) abandon(key string, c chan answer[V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := slices.DeleteFunc(g.pending[key], func(other chan answer[V]) bool { return other == c })
	if g.pending[key] = left; len(left) == 0 {
		delete(g.pending, key)
	}
}

// next removes and returns the requests of the next call.
func (g *gatherer[V]) next() (keys []string, asked map[string][]chan answer[V]) {
	asked = map[string][]chan answer[V]{}
	for len(g.order) > 0 && (g.most == 0 || len(keys) < g.most) {
		key := g.order[0]
		g.order = g.order[1:]
		if list := g.pending[key]; list != nil {
			keys, asked[key] = append(keys, key), list
			delete(g.pending, key)
		}
	}
	return keys, asked
}

// run makes calls while there are requests.
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
		keys, asked := g.next()
		now := g.clock.Now()
		g.last = now
		if len(asked) == 0 {
			g.running = false
		}
		g.mu.Unlock()
		if len(asked) == 0 {
			return
		}
		got, err := g.call(ctx, keys)
		for k, list := range asked {
			for _, c := range list {
				c <- answer[V]{got[k], now, err}
			}
		}
	}
}
