package plug

import (
	"context"
	"fmt"
	"sync"
)

// Turns serializes calls about the same name. The zero value is ready to use.
type Turns struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // guarded by mu; closed when the turn ends
}

// During makes a call during the turn of a name.
func (t *Turns) During(ctx context.Context, name string, call func() error) error {
	done, err := t.Take(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return call()
}

// Take waits for the turn of a name. done ends the turn. Take fails when ctx ends first.
func (t *Turns) Take(ctx context.Context, name string) (done func(), err error) {
	for {
		t.mu.Lock()
		other := t.busy[name]
		if other == nil {
			mine := make(chan struct{})
			if t.busy == nil {
				t.busy = map[string]chan struct{}{}
			}
			t.busy[name] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.busy, name)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another call about %s: %w", name, context.Cause(ctx))
		}
	}
}
