// Package egressfake simulates, in memory, the egress state in pods' network namespaces, for tests
// that set up clients and gateways.
package egressfake

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
)

// Kernel implements egress.Kernel, including its contracts. It outlives daemons and
// is safe for concurrent use.
type Kernel struct {
	*state
	do func(effect func()) error
}

type state struct {
	hasNetns func(path string) bool

	mu       sync.Mutex // guards the fields below
	clients  map[string]egressclient.Setup
	forwards map[string]bool
	tracked  map[string]egressgateway.Tracked
	err      error // error of all calls
}

// NewKernel returns a kernel without tunnels. HasNetns reports whether a network namespace exists at a
// path; nil: at every path.
func NewKernel(hasNetns func(path string) bool) *Kernel {
	if hasNetns == nil {
		hasNetns = func(string) bool { return true }
	}
	return &Kernel{
		&state{hasNetns: hasNetns, clients: map[string]egressclient.Setup{}, forwards: map[string]bool{}, tracked: map[string]egressgateway.Tracked{}},
		func(effect func()) error { effect(); return nil },
	}
}

// Open returns a daemon's handle of the kernel. Do runs each effect, or returns an error if the effect must
// not happen.
func (k *Kernel) Open(do func(effect func()) error) *Kernel { return &Kernel{k.state, do} }

func (k *Kernel) call(path string, work func() error) (err error) {
	refused := k.do(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.hasNetns(path) {
			err = fmt.Errorf("%s: %w", path, datapath.ErrNoNetns)
		} else if err = k.err; err == nil {
			err = work()
		}
	})
	if refused != nil {
		return refused
	}
	return err
}

// Apply implements egress.Kernel.
func (k *Kernel) Apply(_ context.Context, path string, s egressclient.Setup) error {
	return k.call(path, func() error {
		if err := s.Validate(); err != nil {
			return err
		}
		if k.clients[path] = s; len(s.Egresses) == 0 {
			delete(k.clients, path)
		}
		return nil
	})
}

// Check implements egress.Kernel.
func (k *Kernel) Check(_ context.Context, path string, s egressclient.Setup) error {
	return k.call(path, func() error {
		if has, ok := k.clients[path]; ok != (len(s.Egresses) > 0) || ok && !reflect.DeepEqual(has, s) {
			return fmt.Errorf("the namespace has %+v", has)
		}
		return nil
	})
}

// Forward implements egress.Kernel.
func (k *Kernel) Forward(path string) error {
	return k.call(path, func() error { k.forwards[path] = true; return nil })
}

// Forwards implements egress.Kernel.
func (k *Kernel) Forwards(path string) error {
	return k.call(path, func() error {
		if !k.forwards[path] {
			return errors.New("the namespace does not forward")
		}
		return nil
	})
}

// Tracked implements egress.Kernel.
func (k *Kernel) Tracked(path string) (t egressgateway.Tracked, err error) {
	err = k.call(path, func() error { t = k.tracked[path]; return nil })
	return t, err
}

// Supported implements egress.Kernel.
func (k *Kernel) Supported() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Clients returns the setups of clients, by the paths of existing namespaces.
func (k *Kernel) Clients() map[string]egressclient.Setup {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]egressclient.Setup{}
	for path, s := range k.clients {
		if k.hasNetns(path) {
			out[path] = s
		}
	}
	return out
}

// Track sets the connection tracking numbers of a namespace.
func (k *Kernel) Track(path string, t egressgateway.Tracked) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tracked[path] = t
}

// Fail makes all calls fail with err; nil ends that.
func (k *Kernel) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}
