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
	// Connections lists the open connections. It takes milliseconds, and delays no change. End ends the listed connections that
	// allowed rejects.
	Connections() ([]policytable.Connection, error)
	End(list []policytable.Connection, allowed func(policy.Flow) bool) (int, error)
	// Refused returns the number of rejected packets by direction and policies.
	Refused() ([]policytable.Refused, error)
	// Present reports whether the kernel has what was applied last.
	Present() (bool, error)
	// Forget makes the next Apply replace everything, because other software may have changed anything.
	Forget()
	// Watch sends a description of each change by other software until ctx ends, and an empty text if changes may have been
	// missed. It closes the channel when it fails.
	Watch(ctx context.Context) (<-chan string, error)
}

// Pod is a pod that runs on the node, or is about to.
type Pod struct {
	policy.PodName
	UID   string
	Addrs []netip.Addr // addresses that other pods and nodes know
	Local []netip.Addr // other addresses, which matter on this node only
	// Inside is set if the pod has interfaces whose packets do not pass the node's IP stack.
	Inside *Inside
	// Tunnels are the gateways of its Egresses and their Services, with the UDP port of tunnels. For packets in tunnels, policies
	// match the inner header.
	Tunnels []netip.AddrPort
	// Changes is set if the addresses are about to change: the former addresses stay valid on this node until the next Set.
	Changes bool

	set      int  // number of the call of Set, highest for the latest sandbox of a pod; 0 if restored
	known    bool // the operator has sent its policies
	restored bool // it was running when the process started
}

// byNode reports whether the node's table enforces the pod's policies.
func (p Pod) byNode() bool { return p.Inside == nil || !p.Inside.Only }

func (p Pod) allAddrs() []netip.Addr { return slices.Concat(p.Addrs, p.Local) }

// Options configure an Enforcer.
type Options struct {
	Kernel  Kernel
	Denials Denials // if nil, denied connections are not logged. Run closes it
	// OpenInside opens the table of a pod and, if possible, its log, which the table closes.
	OpenInside func(i Inside) (PodKernel, Denials, error)
	Dial       Dialer
	Dir        string // directory of the stored file; it must survive a reboot
	// StartUnknown: a pod is open until the operator has sent its policies. Otherwise it is closed.
	StartUnknown bool
	Interval     time.Duration // how often the kernel is checked, in addition to each observed change
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

	mu sync.Mutex // guards the fields below; never held while waiting
	received
	foreign string         // what other software may have changed in the kernel, or ""
	state   *policy.State  // changed by Run only
	pods    map[string]Pod // by attachment
	rules   bool           // pods or policies have changed since the last change of the kernel
	round   *round         // the next change of the kernel
	moved   chan struct{}  // closed and replaced whenever state changes
	record  record
	holding holding
}

// received holds updates from the operator.
type received struct {
	updates []*policy.Update // not yet applied to state
	session uint64           // session of the last one; 0 for the stored file
}

// own is the state of the goroutine of Run.
type own struct {
	applied bool // the last change of the kernel succeeded
	file    stored
	// unstored: the file lacks updates of the operator. urgent: these do not only change sets.
	unstored, urgent bool

	looks  looks
	failed error // for pods whose policies are not in force, while those of others are
}

// round is one change of the kernel.
type round struct {
	done   chan struct{}
	err    error
	failed map[string]error // by attachment
	next   *round           // the following round
}

func newRound() *round { return &round{done: make(chan struct{})} }

// New returns an Enforcer with the policies of the stored file. If the file cannot be read, the error is logged, and nothing
// is known until the operator sends policies.
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

// Known returns once the policies of a pod are known, or when ctx ends.
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

// Unknown explains why the policies of a pod are not known.
func (e *Enforcer) Unknown(name policy.PodName) string {
	text := fmt.Sprintf("berth-operator has not sent this node the network policies of pod %s/%s", name.Namespace, name.Name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := &e.record; !r.connected && r.lost != "" {
		text += fmt.Sprintf("; it has not been connected since %s: %s", r.away().UTC().Format(time.RFC3339), r.lost)
	}
	return text
}

// Set returns nil once the policies of a pod are in force. If the kernel rejects them, Set waits for further attempts until
// ctx ends, and returns the kernel's error. Options.StartUnknown decides whether an unknown pod is open or closed.
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
		return nil // nothing is applied before the first update
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

// Holds reports whether an attachment was Set or restored with this pod.
func (e *Enforcer) Holds(attachment string, p Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, there := e.pods[attachment]
	return there && have.PodName == p.PodName && have.UID == p.UID && slices.Equal(have.Addrs, p.Addrs) && slices.Equal(have.Local, p.Local) &&
		have.Inside.equal(p.Inside) && slices.Equal(have.Tunnels, p.Tunnels)
}

// Remove drops a pod that is gone. The kernel is updated soon after.
func (e *Enforcer) Remove(attachment string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p, there := e.pods[attachment]; there {
		delete(e.pods, attachment)
		e.calls.gone(p)
		e.wantRound()
	}
}

// Restore adds the pods that are running when the process starts. Pods that the stored file does not contain keep their state,
// because they may predate network policies. Once the operator has sent policies, pods that it does not know are closed.
func (e *Enforcer) Restore(pods map[string]Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for attachment, p := range pods {
		p.restored = true
		e.pods[attachment] = p
	}
	e.wantRound()
}

// wantRound schedules a round that applies pods and policies, and returns it.
func (e *Enforcer) wantRound() *round {
	e.rules = true
	e.dirty.Set()
	return e.round
}

// take queues an update of the operator.
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
		// Not with context.AfterFunc, whose function may start after this one has returned.
		defer func() { _ = e.Denials.Close() }()
		running.Go(func() { e.insides.denied.run(e.Denials) })
	}
	defer e.insides.closeAll()
	defer e.own.looks.running.Wait()
	var failures, partly retry.Backoff
	var again <-chan time.Time // fires at the time in at
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
			do = e.apply // the kernel's state is unknown
		}
		err := do()
		e.mu.Lock()
		news := e.record.failed(err, e.Clock.Now())
		e.mu.Unlock()
		if news {
			e.Log.Error("not all network policies are in force, will try again", "err", err)
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
			if again == nil || next.Until.Before(at) { // other changes must not postpone it
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

// partialError is an error about pods with their own tables, or about ending connections. The node's table is in sync, so other
// pods do not wait for the next attempt.
type partialError struct{ error }

// Unwrap returns what failed.
func (p partialError) Unwrap() error { return p.error }

// take applies updates to the state in order. It returns the changes of sets, and whether policies or pods have changed.
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

// apply updates the kernel, and ends connections that policies no longer allow. It reports the result to those who wait for
// the round. An error may be a partialError.
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
	if e.state.Version() == 0 { // the kernel keeps its state until the desired state is known
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
		e.rules = true // the kernel's state is unknown, so everything is applied
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

// rest ends connections that policies no longer allow, after these are in force. An error is a partialError.
func (e *Enforcer) rest() error {
	failed := e.own.failed
	if !e.holding.unsure() { // otherwise pods may be closed only temporarily
		failed = errors.Join(failed, e.own.looks.end(*e.own.looks.at))
	}
	if failed != nil {
		return partialError{failed}
	}
	return nil
}

// change applies the desired policies to the kernel, and returns them. rules is false if only sets have changed.
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
		changed = nil // the kernel has them, or Kernel remembers them
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
