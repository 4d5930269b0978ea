package networkpolicy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/retry"
)

// Kernel enforces policies. *policytable.Table implements it.
type Kernel interface {
	Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error
	ApplyElements(elements policytable.Elements, changed policy.SetChanges) error
	End(allowed func(policy.Flow) bool) (int, error)
}

// Pod is a pod that runs on the node, or is about to.
type Pod struct {
	policy.PodName
	UID   string
	Addrs []netip.Addr
}

// Options are what an Enforcer is made of.
type Options struct {
	Kernel  Kernel
	Denials Denials // nil: denied connections are not logged. Run closes it
	Dial    Dialer
	Dir     string // of the stored file; it has to outlast a reboot
	Clock   clock.Clock
	Log     *slog.Logger
}

// Enforcer keeps the policies of a node's pods in force. The goroutine of Run is the only one that changes state and the
// kernel.
type Enforcer struct {
	Options
	calls *calls
	dirty chan struct{} // has an element when apply has something to do

	mu      sync.Mutex       // guards below; nothing waits while it is held
	updates []*policy.Update // that state does not have yet
	session uint64           // of the last of them; 0: the file
	state   *policy.State    // others than Run read it
	pods    map[string]Pod   // by attachment
	rules   bool             // pods or policies changed since the kernel had them
	round   *round           // the next one that changes the kernel
	moved   chan struct{}    // closed and replaced whenever state changes
}

// round is one change of the kernel.
type round struct {
	done chan struct{}
	err  error
}

func newRound() *round { return &round{done: make(chan struct{})} }

// New returns an Enforcer with what the file says. The error of a file that cannot be read is logged: then nothing is known
// until the operator says it.
func New(o Options) *Enforcer {
	e := &Enforcer{
		Options: o, calls: newCalls(), dirty: make(chan struct{}, 1),
		state: policy.NewState(), pods: map[string]Pod{}, round: newRound(), moved: make(chan struct{}),
	}
	e.load()
	return e
}

// Known returns once it is known which policies select a pod, or when ctx ends.
func (e *Enforcer) Known(ctx context.Context, name policy.PodName, uid string) error {
	for {
		e.mu.Lock()
		_, known := e.state.Of(name, uid)
		moved := e.moved
		e.mu.Unlock()
		if known {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the operator has not told which policies select pod %s/%s: %w", name.Namespace, name.Name, context.Cause(ctx))
		}
	}
}

// Set has the policies of a pod in force when it returns without an error. The pod is Known.
func (e *Enforcer) Set(ctx context.Context, attachment string, p Pod) error {
	e.mu.Lock()
	e.pods[attachment] = p
	r := e.wantRound()
	e.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Remove forgets a pod that is gone. The kernel forgets it soon after.
func (e *Enforcer) Remove(attachment string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, there := e.pods[attachment]; there {
		delete(e.pods, attachment)
		e.wantRound()
	}
}

// Restore takes in the pods that run when the process begins.
func (e *Enforcer) Restore(pods map[string]Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for attachment, p := range pods {
		e.pods[attachment] = p
	}
	e.wantRound()
}

// wantRound has pods and policies applied, and returns the round in which they are.
func (e *Enforcer) wantRound() *round {
	e.rules = true
	e.wake()
	return e.round
}

func (e *Enforcer) wake() {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// take takes in an update of the operator.
func (e *Enforcer) take(session uint64, u *policy.Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.updates, e.session = append(e.updates, u), session
	e.wake()
}

// Run follows the operator and changes the kernel until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { e.follow(ctx) })
	if e.Denials != nil {
		running.Go(func() { e.logDenials(ctx, e.Denials) })
	}
	var failures retry.Backoff
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.dirty:
		}
		err := e.apply()
		if err == nil {
			failures = retry.Backoff{}
			continue
		}
		e.Log.Error("network policies are not in force as they should be", "err", err)
		failures.Fail(e.Clock.Now(), retry.First, retry.Most)
		select {
		case <-ctx.Done():
			return nil
		case <-e.Clock.After(failures.Until.Sub(e.Clock.Now())):
			e.wake()
		}
	}
}

// apply brings the kernel up to date, and ends connections that policies forbid by now. Those who wait for the round
// hear how it went.
func (e *Enforcer) apply() error {
	e.mu.Lock()
	changed := policy.SetChanges{}
	for _, u := range e.updates {
		if u.Whole {
			changed = policy.SetChanges{}
		}
		for id, change := range u.Sets {
			changed.Of(id).Then(change)
		}
		e.rules = e.state.Take(u) || e.rules
	}
	e.updates = nil
	close(e.moved)
	e.moved = make(chan struct{})
	if e.state.Version() == 0 { // what the kernel has stays until it is known what it should have
		e.mu.Unlock()
		return nil
	}
	r, rules, view, session := e.round, e.rules, e.view(), e.session
	e.round, e.rules = newRound(), false
	e.mu.Unlock()
	if rules {
		r.err = e.Kernel.Apply(view.pods, e.state.Elements, changed)
	} else {
		r.err = e.Kernel.ApplyElements(e.state.Elements, changed)
	}
	close(r.done)
	if r.err != nil {
		e.mu.Lock()
		e.rules = true // the kernel's table is unknown, so all of it is applied
		e.mu.Unlock()
		return r.err
	}
	e.calls.enforced(session, e.state.Version())
	e.store()
	n, err := e.Kernel.End(view.allows)
	if err != nil {
		return fmt.Errorf("end connections: %w", err)
	}
	if n > 0 {
		e.Log.Info("policies forbid connections that were open", "ended", n)
	}
	return nil
}

// view is which policies the pods have.
type view struct {
	pods   []policytable.Pod
	byAddr map[netip.Addr][]*policy.Policy
	sets   policy.Sets
}

// view is that of now. A pod of which the operator says nothing any more is about to end, and nobody reaches it.
func (e *Enforcer) view() view {
	v := view{byAddr: map[netip.Addr][]*policy.Policy{}, sets: e.state}
	for _, p := range e.pods {
		list, known := e.state.Of(p.PodName, p.UID)
		if !known {
			list = []*policy.Policy{closed(p.PodName)}
		}
		v.pods = append(v.pods, policytable.Pod{Addrs: p.Addrs, Policies: list})
		for _, a := range p.Addrs {
			v.byAddr[a] = list
		}
	}
	return v
}

// closed is a policy that accepts nothing.
func closed(name policy.PodName) *policy.Policy {
	return &policy.Policy{Ref: policy.Ref{Namespace: name.Namespace, Name: "(unknown pod)"}, Tier: policy.Namespaced, Isolates: [2]bool{true, true}}
}

// allows tells whether the policies of the node's pods allow a connection.
func (v view) allows(f policy.Flow) bool {
	return policy.Decide(v.byAddr[f.Source], policy.Egress, f, v.sets).Allowed && policy.Decide(v.byAddr[f.Destination], policy.Ingress, f, v.sets).Allowed
}
