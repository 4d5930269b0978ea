package virtual

import (
	"context"
	"errors"
	"sync"
)

// errHalted is what a program gets from everything outside it once it is halted.
var errHalted = errors.New("this program was halted")

// world is one life of a program. Everything that the program can change outside itself
// it changes by do or request, or below a directory that halt moves away. So nothing that
// a halted program still does has an effect, and it may go on until its context has
// ended it.
type world struct {
	name   string
	ctx    context.Context // ends with the world
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the program has returned
	err    error         // of the program; set before ended is closed

	mu     sync.RWMutex // held over each effect, so that a halt is before or after it
	halted string       // the failpoint; guarded by mu
}

func newWorld(ctx context.Context, name string) *world {
	ctx, cancel := context.WithCancelCause(ctx)
	return &world{name: name, ctx: ctx, cancel: cancel, ended: make(chan struct{})}
}

// run runs the program.
func (w *world) run(program func(ctx context.Context) error) {
	go func() {
		defer close(w.ended)
		w.err = program(w.ctx)
	}()
}

// halt ends the world at a failpoint. Moved moves away what the program has of files.
func (w *world) halt(failpoint string, moved func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	moved()
	w.halted = failpoint
	w.cancel(errHalted)
}

// alive is errHalted once the world was halted.
func (w *world) alive() error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.halted != "" {
		return errHalted
	}
	return nil
}

// do has something happen outside the program, at once, unless the world was halted.
func (w *world) do(effect func()) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.halted != "" {
		return errHalted
	}
	effect()
	return nil
}

// request makes a call that takes time. One that is on its way when the world is halted
// does not arrive, and no reply reaches a program that was halted.
func (w *world) request(ctx context.Context, call func(context.Context) error) error {
	if err := w.alive(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.ctx, func() { cancel(errHalted) })()
	err := call(ctx)
	if halted := w.alive(); halted != nil {
		return halted
	}
	return err
}
