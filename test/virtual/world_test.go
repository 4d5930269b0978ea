package virtual

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/test/harness"
)

// errHalted is what a program gets from everything outside it once it is halted.
var errHalted = errors.New("this program was halted")

// crash is where a program is to be halted.
type crash struct {
	failpoint string
	hit       int
}

// eachCrash runs a test in virtual time for each failpoint, at which a program is halted at
// the first hit, and for a sample of them once more with the second hit.
func eachCrash(t *testing.T, failpoints []string, test func(t *testing.T, at crash)) {
	t.Helper()
	var first, second []crash
	for _, name := range failpoints {
		first, second = append(first, crash{name, 1}), append(second, crash{name, 2})
	}
	for _, at := range slices.Concat(first, harness.Sample(t, 5, second)) {
		t.Run(fmt.Sprintf("%s@%d", at.failpoint, at.hit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, at)
				time.Sleep(time.Hour) //nolint:forbidigo // virtual time, in which what has ended may sleep its last
			})
		})
	}
}

// world is one life of a program. Everything that the program can change outside itself
// it changes by do or request, or below a directory that halt moves away. So nothing that
// a halted program still does has an effect, and it may go on until its context has
// ended it.
type world struct {
	number int             // of the program's lives, from 1
	ctx    context.Context // ends with the world
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the program has returned
	err    error         // of the program; set before ended is closed

	mu     sync.RWMutex // held over each effect, so that a halt is before or after it
	halted string       // the failpoint; guarded by mu
}

// program is berthd of a node or berth-operator: one life after the other.
type program struct {
	t    *testing.T
	name string
	// launch starts the program in a world, by run. Moved moves its files away from a world
	// that is halted.
	launch func(w *world)
	moved  func(w *world)

	ctx  context.Context // ends with the last life
	stop context.CancelFunc
	done chan struct{} // closed then

	mu    sync.Mutex
	world *world   // the one that runs, or was halted last; guarded by mu, as are
	halts []string // failpoints at which it was halted
}

// pause is how long a kubelet waits before it starts a program again.
const pause = time.Second

// start runs the program, and again each time it is halted, until close is called.
func (p *program) start() {
	p.ctx, p.stop = context.WithCancel(p.t.Context())
	p.done = make(chan struct{})
	p.next(1)
	go func() {
		defer close(p.done)
		for w := p.running(); ; w = p.running() {
			<-w.ended
			if w.alive() == nil { // it ended by itself, or because of close
				if w.err != nil || p.ctx.Err() == nil {
					p.t.Errorf("%s ended: %v", p.name, w.err)
				}
				return
			}
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(pause):
			}
			p.next(w.number + 1)
		}
	}()
}

// next starts a life of the program.
func (p *program) next(number int) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	w := &world{number: number, ctx: ctx, cancel: cancel, ended: make(chan struct{})}
	p.mu.Lock()
	p.world = w
	p.mu.Unlock()
	p.launch(w)
}

func (p *program) running() *world {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.world
}

// close ends the program in order.
func (p *program) close() {
	p.stop()
	<-p.done
}

// haltAt has the program that passes a failpoint be halted there. Those of undoing an ADD
// need ADDs that fail until then.
func (p *program) haltAt(at crash) {
	p.t.Helper()
	spec := fmt.Sprintf("%s=halt@%d", at.failpoint, at.hit)
	if strings.HasPrefix(at.failpoint, "daemon.undo.") {
		spec += ",daemon.add.wired=error"
	}
	restore, err := failpoint.SetHalt(spec, func(name string) {
		_, _ = failpoint.Set("") // which has no syntax error
		w := p.running()
		p.mu.Lock()
		p.halts = append(p.halts, name)
		p.mu.Unlock()
		w.halt(name, func() { p.moved(w) })
	})
	check(p.t, err)
	p.t.Cleanup(restore)
}

// wantHalt wants it to have been halted once, or never at the second hit of what a run passes once.
func (p *program) wantHalt(at crash) {
	p.t.Helper()
	test, _, _ := strings.Cut(p.t.Name(), "/")
	want := []string{at.failpoint}
	if at.hit > 1 && (slices.Contains(once[test], at.failpoint) || slices.Contains(sometimes[test], at.failpoint) && len(p.halts) == 0) {
		want = nil
	}
	if !slices.Equal(p.halts, want) {
		p.t.Errorf("%s was halted at %v, want %v", p.name, p.halts, want)
	}
}

// String implements fmt.Stringer, for logs.
func (w *world) String() string { return fmt.Sprint(w.number) }

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
