// Package failpoint lets a test end the program, or make a step fail, at a
// named place, to prove that what was half done is finished or undone later.
//
// BERTH_FAILPOINTS holds a comma-separated list of name=action:
//
//	eni.create.after=kill      SIGKILL to oneself at the first hit
//	eni.create.after=kill@3    at the third hit
//	eni.create.after=error     every hit returns ErrHit
//	eni.create.after=error@2   the second hit only
//
// With the variable empty a hit costs one load and a branch.
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

// EnvVar is the variable that arms failpoints at the program's start.
const EnvVar = "BERTH_FAILPOINTS"

// ErrHit is what an armed failpoint of action error returns, wrapped with its name.
var ErrHit = errors.New("failpoint")

type action struct {
	kill bool
	at   int // the hit that acts; 0: every one
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

// Err tells whether the environment's list was malformed or has a failpoint
// that the program does not; programs check it at start.
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

// Register makes failpoint names known to Names. It is called from a package
// variable, so that every name a program has is listed once it started:
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

// Hit passes a failpoint: nil unless name is armed. It does not return from a
// kill. The caller handles the error as it would any failure of that step.
func Hit(name string) error {
	if !armed.Load() {
		return nil
	}
	return hit(name)
}

// Around makes a step between the failpoints name.before and name.after.
func Around(name string, step func() error) error {
	if err := Hit(name + ".before"); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	return Hit(name + ".after")
}

func hit(name string) error {
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
	if p.kill {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; do nothing more
	}
	return fmt.Errorf("%w %s", ErrHit, name)
}

// Set arms the failpoints of spec, in the form that the package comment
// gives, in place of those armed before; restore puts the former ones back.
func Set(spec string) (restore func(), err error) {
	next, err := parse(spec)
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

func parse(spec string) (map[string]*action, error) {
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
		switch verb {
		case "kill":
			a.kill, a.at = true, 1
		case "error":
		default:
			return nil, fmt.Errorf("%s: action %q: want kill or error", name, verb)
		}
		if counted {
			n, err := strconv.Atoi(count)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%s: hit %q: want a number from 1", name, count)
			}
			a.at = n
		}
		out[name] = a
	}
	return out, nil
}
