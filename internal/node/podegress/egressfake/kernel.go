// Package egressfake is the kernel in pods' network namespaces in memory, as far as egress is
// about it, for tests of what sets up clients and gateways.
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

// Kernel has the methods of an egress.Kernel, with their contracts. It outlives daemons and
// is safe for concurrent use.
type Kernel struct {
	*state
	do func(effect func()) error
}

type state struct {
	hasNetns func(path string) bool

	mu       sync.Mutex // guards all below
	clients  map[string]egressclient.Setup
	forwards map[string]bool
	tracked  map[string]egressgateway.Tracked
	err      error // of all calls
}

// NewKernel is one without tunnels. HasNetns reports whether there is a network namespace at a
// path; nil: there is one at each.
func NewKernel(hasNetns func(path string) bool) *Kernel {
	if hasNetns == nil {
		hasNetns = func(string) bool { return true }
	}
	return &Kernel{
		&state{hasNetns: hasNetns, clients: map[string]egressclient.Setup{}, forwards: map[string]bool{}, tracked: map[string]egressgateway.Tracked{}},
		func(effect func()) error { effect(); return nil },
	}
}

// Open is a daemon's handle of the kernel. Do has each effect happen, or returns why it must
// not.
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

// Apply is that of egress.Kernel.
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

// Check is that of egress.Kernel.
func (k *Kernel) Check(_ context.Context, path string, s egressclient.Setup) error {
	return k.call(path, func() error {
		if has, ok := k.clients[path]; ok != (len(s.Egresses) > 0) || ok && !reflect.DeepEqual(has, s) {
			return fmt.Errorf("the namespace has %+v", has)
		}
		return nil
	})
}

// Forward is that of egress.Kernel.
func (k *Kernel) Forward(path string) error {
	return k.call(path, func() error { k.forwards[path] = true; return nil })
}

// Forwards is that of egress.Kernel.
func (k *Kernel) Forwards(path string) error {
	return k.call(path, func() error {
		if !k.forwards[path] {
			return errors.New("it does not forward")
		}
		return nil
	})
}

// Tracked is that of egress.Kernel.
func (k *Kernel) Tracked(path string) (t egressgateway.Tracked, err error) {
	err = k.call(path, func() error { t = k.tracked[path]; return nil })
	return t, err
}

// Supported is that of egress.Kernel.
func (k *Kernel) Supported() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Clients are what is set up for clients, by the paths of namespaces that are there.
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

// Track has connection tracking say something in a namespace.
func (k *Kernel) Track(path string, t egressgateway.Tracked) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tracked[path] = t
}

// Fail has all calls fail, nil none any more.
func (k *Kernel) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}
