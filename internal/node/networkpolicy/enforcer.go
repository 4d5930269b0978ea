package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/retry"
)

var _ = failpoint.Register(
	"networkpolicy.taken", "networkpolicy.applied", "networkpolicy.enforced", "networkpolicy.ended",
	"networkpolicy.store.written", "networkpolicy.store.after",
)

// Kernel enforces policies. *policytable.Table implements it.
type Kernel interface {
	Apply(pods []policytable.Pod, elements policytable.Elements, changed policy.SetChanges) error
	ApplyElements(elements policytable.Elements, changed policy.SetChanges) error
	// Connections lists the connections that are open, which takes milliseconds and holds up no change. End ends those of the list
	// that allowed rejects.
	Connections() ([]policytable.Connection, error)
	End(list []policytable.Connection, allowed func(policy.Flow) bool) (int, error)
	// Refused returns how many packets were refused, by direction and policies.
	Refused() ([]policytable.Refused, error)
	// Present tells whether the kernel has what was applied last.
	Present() (bool, error)
	// Forget has the next Apply replace everything, as other software may have changed anything.
	Forget()
	// Watch sends what other software changes, until ctx ends, and an empty text when changes may have been missed. The
	// channel is closed when it cannot go on.
	Watch(ctx context.Context) (<-chan string, error)
}

// Pod is a pod that runs on the node, or is about to.
type Pod struct {
	policy.PodName
	UID   string
	Addrs []netip.Addr // by which other pods and nodes know it
	Local []netip.Addr // its other addresses, which count on this node only
	// Inside is for interfaces whose packets do not pass the node's IP stack; nil: there are none that policies concern.
	Inside *Inside
	// Tunnels are the gateways of its Egresses, and their Services, with the UDP port of tunnels. What leaves in tunnels is judged
	// by what is inside.
	Tunnels []netip.AddrPort
	// Changes says that its addresses are about to change: those that it had before count on this node until the next Set.
	Changes bool

	set      int  // counts calls of Set: that of a pod's latest sandbox is the highest; 0: it was restored
	known    bool // the operator has told about it
	restored bool // it ran when the process began
}

// byNode tells whether the node's table judges the pod.
func (p Pod) byNode() bool { return p.Inside == nil || !p.Inside.Only }

func (p Pod) allAddrs() []netip.Addr { return slices.Concat(p.Addrs, p.Local) }

// Options are what an Enforcer is made of.
type Options struct {
	Kernel  Kernel
	Denials Denials // nil: denied connections are not logged. Run closes it
	// OpenInside opens the table of a pod, and its log unless that is nil, which the table closes.
	OpenInside func(i Inside) (PodKernel, Denials, error)
	Dial       Dialer
	Dir        string // of the stored file; it has to outlast a reboot
	// StartUnknown: a pod is open until the operator has told about it. Otherwise it is closed.
	StartUnknown bool
	Interval     time.Duration // how often the kernel is looked at, in addition to each observed change
	Metrics      Metrics
	Clock        clock.Clock
	Log          *slog.Logger
}

// Enforcer keeps the policies of a node's pods in force. The goroutine of Run is the only one that changes state and the
// kernel.
type Enforcer struct {
	Options
	calls   *calls
	dirty   retry.Signal // apply has something to do
	own     own
	insides insides

	mu sync.Mutex // guards below; nothing waits while it is held
	told
	foreign string         // what other software may have changed in the kernel; empty: nothing
	state   *policy.State  // others than Run read it
	pods    map[string]Pod // by attachment
	rules   bool           // pods or policies changed since the kernel had them
	round   *round         // the next one that changes the kernel
	moved   chan struct{}  // closed and replaced whenever state changes
	record  record
	holding holding
}

// told is what the operator has told.
type told struct {
	updates []*policy.Update // that state does not have yet
	session uint64           // of the last of them; 0: the file
}

// own is the state of the goroutine of Run.
type own struct {
	applied bool // the last change of the kernel succeeded
	file    stored
	// unstored: the file lacks what the operator has told. urgent: not only about sets.
	unstored, urgent bool

	looks  looks
	failed error // of pods whose policies are not in force, while those of others are
}

// round is one change of the kernel.
type round struct {
	done   chan struct{}
	err    error
	failed map[string]error // of attachments
	next   *round           // the one after this one
}

func newRound() *round { return &round{done: make(chan struct{})} }

// New returns an Enforcer with what the file says. The error of a file that cannot be read is logged: then nothing is known
// until the operator says it.
func New(o Options) *Enforcer {
	e := &Enforcer{
		Options: o, calls: newCalls(), dirty: retry.NewSignal(), record: record{began: o.Clock.Now()},
		state: policy.NewState(), pods: map[string]Pod{}, round: newRound(), moved: make(chan struct{}),
	}
	e.insides = insides{open: o.OpenInside, log: o.Log, denied: denialLog{of: e, limit: newDenialLimit(o.Clock, denialRate, denialMemory)}, tables: map[string]insidePod{}}
	e.own.looks = looks{kernel: o.Kernel, insides: &e.insides, clock: o.Clock, log: o.Log}
	e.own.file = stored{dir: o.Dir, clock: o.Clock, log: o.Log, state: e.state}
	if u := e.own.file.load(); u != nil {
		e.updates = append(e.updates, u)
		e.dirty.Set()
	}
	return e
}

// Known returns once it is known which policies select a pod, or when ctx ends.
func (e *Enforcer) Known(ctx context.Context, name policy.PodName, uid string) error {
	defer e.calls.waits(e.Clock.Now())()
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
			return fmt.Errorf("%s: %w", e.Unknown(name), context.Cause(ctx))
		}
	}
}

// Unknown says why it is not known which policies select a pod.
func (e *Enforcer) Unknown(name policy.PodName) string {
	text := fmt.Sprintf("berth-operator has not told this node which network policies select pod %s/%s", name.Namespace, name.Name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := &e.record; !r.connected && r.lost != "" {
		text += fmt.Sprintf("; it has not been connected since %s: %s", r.away().UTC().Format(time.RFC3339), r.lost)
	}
	return text
}

// Set has the policies of a pod in force when it returns without an error. What the kernel refuses is tried again until ctx
// ends; the error is the kernel's. A pod that is not known is open or closed by
// Options.StartUnknown.
func (e *Enforcer) Set(ctx context.Context, attachment string, p Pod) error {
	e.mu.Lock()
	e.record.sets++
	p.set = e.record.sets
	if before := e.pods[attachment]; before.PodName == p.PodName && before.UID == p.UID { // its addresses or tunnels changed
		p.known, p.restored = before.known, before.restored
		if p.Changes {
			own := p.allAddrs()
			p.Local = slices.Concat(p.Local, slices.DeleteFunc(before.allAddrs(), func(a netip.Addr) bool { return slices.Contains(own, a) }))
		}
	}
	e.pods[attachment] = p
	r := e.wantRound()
	nothing := e.state.Version() == 0 && len(e.updates) == 0
	e.mu.Unlock()
	if nothing && (e.StartUnknown || p.restored) {
		return nil // nothing is applied before the operator speaks
	}
	var last error
	for {
		select {
		case <-r.done:
			if last = r.err; last == nil {
				last = r.failed[attachment]
			}
			if last == nil {
				return nil
			}
			r = r.next
		case <-ctx.Done():
			if last == nil {
				last = context.Cause(ctx)
			}
			return last
		}
	}
}

// Holds tells whether an attachment was Set, or restored, as this pod.
func (e *Enforcer) Holds(attachment string, p Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, there := e.pods[attachment]
	return there && have.PodName == p.PodName && have.UID == p.UID && slices.Equal(have.Addrs, p.Addrs) && slices.Equal(have.Local, p.Local) &&
		have.Inside.equal(p.Inside) && slices.Equal(have.Tunnels, p.Tunnels)
}

// Remove forgets a pod that is gone. The kernel forgets it soon after.
func (e *Enforcer) Remove(attachment string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p, there := e.pods[attachment]; there {
		delete(e.pods, attachment)
		e.calls.gone(p)
		e.wantRound()
	}
}

// Restore takes in the pods that run when the process begins. Those about which the stored file says nothing keep what they have:
// they may be from before policies were enforced. Once the operator speaks they are closed if it does not know them.
func (e *Enforcer) Restore(pods map[string]Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for attachment, p := range pods {
		p.restored = true
		e.pods[attachment] = p
	}
	e.wantRound()
}

// wantRound has pods and policies applied, and returns the round in which they are.
func (e *Enforcer) wantRound() *round {
	e.rules = true
	e.dirty.Set()
	return e.round
}

// take takes in an update of the operator.
func (e *Enforcer) take(session uint64, u *policy.Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.updates, e.session = append(e.updates, u), session
	e.dirty.Set()
}

// Run follows the operator and changes the kernel until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { follower{e.Options, e.calls, e.take, e.following, e.known}.run(ctx) })
	running.Go(func() { watch(ctx, e.Options, e.suspect) })
	defer e.own.file.flush()
	if e.Denials != nil {
		// Not by context.AfterFunc, whose function may begin later than this one returns.
		defer func() { _ = e.Denials.Close() }()
		running.Go(func() { e.insides.denied.run(e.Denials) })
	}
	defer e.insides.closeAll()
	defer e.own.looks.running.Wait()
	var failures, partly retry.Backoff
	var again <-chan time.Time // at a time
	var at time.Time
	for {
		do := e.apply
		select {
		case <-ctx.Done():
			return nil
		case <-e.own.file.due:
			e.own.file.write()
			continue
		case <-e.own.looks.due:
			e.own.looks.due, e.own.looks.now = nil, true
			do = e.rest
		case l := <-e.own.looks.listed:
			e.own.looks.listed, e.own.looks.found = nil, l
			do = e.rest
		case <-again:
			again = nil
			e.mu.Lock()
			e.holding.due = true
			e.mu.Unlock()
		case <-e.dirty:
		}
		if e.own.looks.at == nil {
			do = e.apply // what the kernel has is unknown
		}
		err := do()
		e.mu.Lock()
		news := e.record.failed(err, e.Clock.Now())
		e.mu.Unlock()
		if news {
			e.Log.Error("network policies are not in force as they should be, will try again", "err", err)
		}
		if err == nil {
			failures, partly, again = retry.Backoff{}, retry.Backoff{}, nil
			continue
		}
		if _, some := errors.AsType[partialError](err); some {
			failures = retry.Backoff{}
			if e.holding.unsure() {
				partly = retry.Backoff{}
			}
			next, now := partly, e.Clock.Now()
			next.Fail(now, retry.First, retry.Most)
			if again == nil || next.Until.Before(at) { // other changes, however many, do not put it off
				partly, at = next, next.Until
				again = e.Clock.After(at.Sub(now))
			}
			continue
		}
		failures.Fail(e.Clock.Now(), retry.First, retry.Most)
		select {
		case <-ctx.Done():
			return nil
		case <-e.Clock.After(failures.Until.Sub(e.Clock.Now())):
			e.dirty.Set()
		}
	}
}

// partialError is an error about pods with a table of their own, or about connections that have to end. The node's table is as it
// should be, so other pods do not wait for the next attempt.
type partialError struct{ error }

// Unwrap returns what failed.
func (p partialError) Unwrap() error { return p.error }

// take applies updates to the state, in their order. It returns the changes of sets, and whether policies or pods changed.
func take(updates []*policy.Update, state *policy.State, held *holding) (changed policy.SetChanges, rules bool) {
	changed = policy.SetChanges{}
	for _, u := range updates {
		if u.Whole {
			changed = policy.SetChanges{}
		}
		for id, change := range u.Sets {
			changed.Of(id).Then(change)
		}
		rules = state.Take(u) || rules
		held.came(u.Policies)
	}
	return changed, rules
}

// apply brings the kernel up to date, and ends connections that policies forbid by now. Those who wait for the round
// hear how it went. An error may be a partialError.
func (e *Enforcer) apply() error {
	e.repair()
	e.mu.Lock()
	e.own.unstored = e.own.unstored || len(e.updates) > 0
	e.own.looks.now = e.own.looks.now || len(e.updates) > 0
	changed, urgent := take(e.updates, e.state, &e.holding)
	e.rules, e.own.urgent = e.rules || urgent, e.own.urgent || urgent
	e.updates = nil
	close(e.moved)
	e.moved = make(chan struct{})
	if e.state.Version() == 0 { // what the kernel has stays until it is known what it should have
		e.mu.Unlock()
		return nil
	}
	r, rules, session := e.round, e.rules, e.session
	e.own.looks.wanted, e.own.looks.at = e.own.looks.wanted || rules || len(changed) > 0, nil
	r.next = newRound()
	e.round, e.rules = r.next, false
	lists := e.lists()
	e.mu.Unlock()
	began := e.Clock.Now()
	var view view
	view, r.err = e.change(lists, rules, changed)
	if r.err == nil {
		r.err = failpoint.Hit("networkpolicy.applied")
	}
	r.failed = e.insides.apply(view, rules, e.state.Elements, changed)
	failed := errors.Join(slices.Collect(maps.Values(r.failed))...)
	e.mu.Lock()
	failed = errors.Join(failed, e.holding.failed(lists, e.pods, r.failed))
	e.mu.Unlock()
	if !rules {
		lists = nil
	}
	if r.err == nil {
		for attachment := range r.failed {
			delete(lists, attachment)
		}
		e.mu.Lock()
		e.record.succeeded(lists, e.Clock.Now())
		e.mu.Unlock()
	}
	e.Metrics.applied(e.Clock.Now().Sub(began), r.err)
	e.own.applied = r.err == nil
	close(r.done)
	if r.err != nil || failed != nil {
		e.mu.Lock()
		e.rules = true // what the kernel has is unknown, so all of it is applied
		e.mu.Unlock()
	}
	if r.err != nil {
		return errors.Join(r.err, failed)
	}
	e.calls.enforced(session, e.state.Version())
	if err := failpoint.Hit("networkpolicy.enforced"); err != nil {
		return err
	}
	if e.own.unstored {
		e.own.file.changed(e.own.urgent)
		e.own.unstored, e.own.urgent = false, false
	}
	e.own.looks.at, e.own.failed = &view, failed
	return e.rest()
}

// rest ends connections that policies forbid by now, after they are in force. An error is a partialError.
func (e *Enforcer) rest() error {
	failed := e.own.failed
	if !e.holding.unsure() { // otherwise pods may be closed for a moment only
		failed = errors.Join(failed, e.own.looks.end(*e.own.looks.at))
	}
	if failed != nil {
		return partialError{failed}
	}
	return nil
}

// change has the kernel enforce what the pods should have, and returns that. rules: not only sets changed.
func (e *Enforcer) change(lists map[string]inForce, rules bool, changed policy.SetChanges) (v view, err error) {
	e.mu.Lock()
	used := e.state.Policies()
	e.holding.begin(used)
	v = e.view(lists)
	e.mu.Unlock()
	for {
		err = policytable.ErrUnknown
		if !rules {
			err = e.Kernel.ApplyElements(e.state.Elements, changed)
		}
		if errors.Is(err, policytable.ErrUnknown) {
			err = e.Kernel.Apply(v.pods, e.state.Elements, changed)
		}
		changed = nil // the kernel has or remembers it
		e.mu.Lock()
		again := e.holding.ended(err, used)
		if again {
			v = e.view(lists)
		}
		e.mu.Unlock()
		if !again {
			return v, err
		}
		rules = true
	}
}
