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

// errHalted is the error of everything outside a halted program.
var errHalted = errors.New("this program was halted")

// crash is where a program is to be halted.
type crash struct {
	failpoint string
	hit       int
}

// eachCrash runs a test in virtual time for each failpoint, at whose first hit a program is halted,
// and for a sample of them again with the second hit.
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

// world is one life of a program. All effects of the program pass do or request, or are below a
// directory that halt renames. So a halted program has no effect until its context ends it.
type world struct {
	number int             // of the program's lives, from 1
	ctx    context.Context // ends with the world
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the program has returned
	err    error         // of the program; set before ended is closed

	mu     sync.RWMutex // held over each effect, so that a halt is before or after it
	halted string       // the failpoint; guarded by mu
}

// program is berthd of a node or berth-operator: its lives, one after the other.
type program struct {
	t    *testing.T
	name string
	// launch starts the program in a world, by run. moved renames the files of a halted world.
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

// start runs the program, again after each halt, until close is called.
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

// close stops the program.
func (p *program) close() {
	p.stop()
	<-p.done
}

// haltAt halts the program at a failpoint. Those of undoing an ADD need ADDs that fail until then.
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

// wantHalt checks that the program was halted once, or never at the second hit of a failpoint that a
// run passes once.
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

// halt ends the world at a failpoint. moved renames the program's files.
func (w *world) halt(failpoint string, moved func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	moved()
	w.halted = failpoint
	w.cancel(errHalted)
}

// alive is errHalted once the world is halted.
func (w *world) alive() error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.halted != "" {
		return errHalted
	}
	return nil
}

// do applies an effect at once, unless the world is halted.
func (w *world) do(effect func()) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.halted != "" {
		return errHalted
	}
	effect()
	return nil
}

// request makes a call that takes time. A halted program's calls do not arrive, and it gets no reply.
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
