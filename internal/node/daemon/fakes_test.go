package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/datapath/datapathfake"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// fakeCalls counts calls of a fake, and injects errors and hooks.
type fakeCalls struct {
	mu    sync.Mutex        // guards the fields below
	fail  map[string]error  // by method
	hook  map[string]func() // by method
	calls map[string]int    // by method
}

func newFakeCalls() fakeCalls {
	return fakeCalls{fail: map[string]error{}, hook: map[string]func(){}, calls: map[string]int{}}
}

// enter runs a method's hook without the lock, and returns its injected error with the lock held.
func (s *fakeCalls) enter(ctx context.Context, method string) error {
	s.mu.Lock()
	s.calls[method]++
	hook := s.hook[method]
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	s.mu.Lock()
	return errors.Join(s.fail[method], ctx.Err())
}

// set injects an error into a method; nil removes it.
func (s *fakeCalls) set(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[method] = err
}

// onEnter runs f at the start of each call of a method.
func (s *fakeCalls) onEnter(method string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook[method] = f
}

// count returns how often a method was called.
func (s *fakeCalls) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// fakeWaits lets callers of a fake wait until a test provides something.
type fakeWaits struct {
	reason string // of the errors

	mu      sync.Mutex // guards the fields below
	waiting map[attachment.Key]string
	kick    chan struct{} // closed when something has changed
}

func newFakeWaits(reason string) fakeWaits {
	return fakeWaits{reason: reason, waiting: map[attachment.Key]string{}, kick: make(chan struct{})}
}

// change changes state that callers wait for.
func (f *fakeWaits) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
	close(f.kick)
	f.kick = make(chan struct{})
}

// until waits until ok, called with f.mu held, returns true. Otherwise it returns the reason.
func (f *fakeWaits) until(ctx context.Context, key attachment.Key, why string, ok func() bool) error {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, key)
	}()
	for {
		f.mu.Lock()
		done, kick := ok(), f.kick
		if !done {
			f.waiting[key] = why
		}
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-kick:
		case <-ctx.Done():
			return &source.Exhausted{Reason: f.reason, Message: why, Err: ctx.Err()}
		}
	}
}

// Why implements part.Part.
func (f *fakeWaits) Why(key attachment.Key) *source.Exhausted {
	f.mu.Lock()
	defer f.mu.Unlock()
	if why, ok := f.waiting[key]; ok {
		return &source.Exhausted{Reason: f.reason, Message: why}
	}
	return nil
}

// fakeKernel is a data path in memory with injected errors and hooks.
type fakeKernel struct {
	fakeCalls
	*datapathfake.Node
	all *datapathfake.Kernel
}

var _ Kernel = (*fakeKernel)(nil)

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{fakeCalls: newFakeCalls(), all: datapathfake.NewKernel()}
	k.all.AnyNetns = true
	k.Node = k.all.Open(func(method string, effect func()) error {
		err := k.enter(context.Background(), method)
		defer k.mu.Unlock()
		if err == nil {
			effect()
		}
		return err
	})
	return k
}

// dropRoutes removes all routes, as other software may do.
func (k *fakeKernel) dropRoutes() {
	k.all.Edit(func(_ map[string]datapath.Pod, routes map[netip.Addr]string) { clear(routes) })
}

func (k *fakeKernel) dropRoute(a netip.Addr) {
	k.all.Edit(func(_ map[string]datapath.Pod, routes map[netip.Addr]string) { delete(routes, a) })
}
