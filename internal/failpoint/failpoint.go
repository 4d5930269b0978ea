// Package failpoint lets a test end the program or make a step fail at a named place, to prove that incomplete work is
// completed or undone later.
//
// BERTH_FAILPOINTS holds a comma-separated list of name=action:
//
//	eni.create.after=kill      sends SIGKILL to the process at the first hit
//	eni.create.after=kill@3    at the third hit
//	eni.create.after=error     every hit returns ErrHit
//	eni.create.after=error@2   the second hit only
//
// A test that runs a program inside its own process arms failpoints with SetHalt, which has an additional action:
//
//	eni.create.after=halt      the first hit stops the program
//	eni.create.after=halt@3    the third hit
//
// If no failpoint is armed, a hit costs one load and a branch.
package failpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// EnvVar is the variable that arms failpoints at start.
const EnvVar = "BERTH_FAILPOINTS"

// ErrHit is the error of a failpoint armed with action error, wrapped with the failpoint's name.
var ErrHit = errors.New("failpoint")

type action struct {
	act  func(name string) error // result of Hit
	at   int                     // number of the hit that acts; 0: every one
	hits int
}

var (
	armed  atomic.Bool
	mu     sync.Mutex // guards all below
	names  = map[string]bool{}
	points = map[string]*action{}
	envErr error
)

func init() {
	_, envErr = Set(os.Getenv(EnvVar))
}

// Err returns an error if the environment's list is malformed or has unknown failpoints; programs
// check it at start.
func Err() error {
	if envErr != nil {
		return fmt.Errorf("%s: %w", EnvVar, envErr)
	}
	mu.Lock()
	defer mu.Unlock()
	for name := range points {
		if !names[name] {
			return fmt.Errorf("%s: %q: this program has no such failpoint", EnvVar, name)
		}
	}
	return nil
}

// Register makes failpoint names known to Names. It is called in a package variable, so that all names of a program are
// registered at its start:
//
//	var _ = failpoint.Register("eni.create.before", "eni.create.after")
func Register(list ...string) struct{} {
	mu.Lock()
	defer mu.Unlock()
	for _, n := range list {
		names[n] = true
	}
	return struct{}{}
}

// Names lists the registered failpoints, sorted.
func Names() []string {
	mu.Lock()
	defer mu.Unlock()
	out := make([]string, 0, len(names))
	for n := range names {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Hit passes a failpoint. It returns nil unless name is armed, and does not return from a kill. The caller handles the
// error like any other failure of that step.
func Hit(name string) error {
	if !armed.Load() {
		return nil
	}
	return hit(name)
}

// Around runs a step between the failpoints name.before and name.after.
func Around(name string, step func() error) error {
	if armed.Load() {
		if err := hit(name + ".before"); err != nil {
			return err
		}
	}
	if err := step(); err != nil || !armed.Load() {
		return err
	}
	return hit(name + ".after")
}

func hit(name string) error {
	if act := due(name); act != nil {
		return act(name)
	}
	return nil
}

// due counts a hit of name, and returns its action if this hit acts.
func due(name string) func(string) error {
	mu.Lock()
	defer mu.Unlock()
	p := points[name]
	if p == nil {
		return nil
	}
	p.hits++
	if p.at != 0 && p.hits != p.at {
		return nil
	}
	return p.act
}

func kill(string) error {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal arrives
}

func fail(name string) error { return fmt.Errorf("%w %s", ErrHit, name) }

// Set arms the failpoints of spec, in the format of the package comment, and disarms others; restore
// reverts that.
func Set(spec string) (restore func(), err error) { return SetHalt(spec, nil) }

// SetHalt is like Set, with the additional action halt, whose hit calls halt and then fails like the action error. halt
// must cut the program off from any further effect, as the program keeps running in this process and handles the error.
func SetHalt(spec string, halt func(name string)) (restore func(), err error) {
	next, err := parse(spec, halt)
	if err != nil {
		return func() {}, err
	}
	mu.Lock()
	defer mu.Unlock()
	former := points
	points = next
	armed.Store(len(next) > 0)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		points = former
		armed.Store(len(former) > 0)
	}, nil
}

func parse(spec string, halt func(name string)) (map[string]*action, error) {
	out := map[string]*action{}
	if spec == "" {
		return out, nil
	}
	for item := range strings.SplitSeq(spec, ",") {
		name, do, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q: want name=kill[@N] or name=error[@N]", item)
		}
		verb, count, counted := strings.Cut(do, "@")
		a := &action{}
		switch {
		case verb == "kill":
			a.act, a.at = kill, 1
		case verb == "error":
			a.act = fail
		case verb == "halt" && halt != nil:
			a.act, a.at = func(name string) error { halt(name); return fail(name) }, 1
		default:
			return nil, fmt.Errorf("%s: action %q: want kill or error", name, verb)
		}
		if counted {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%s: hit %q: want at least 1", name, count)
			}
			a.at = n
		}
		out[name] = a
	}
	return out, nil
}
