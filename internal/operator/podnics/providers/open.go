package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// connection is the open provider of a VPC, with the health of its calls.
type connection struct {
	access   access
	provider vpcport.Provider // bounded by the lanes of its endpoint
	health   *health
	close    func()
}

// opener opens providers. Those of one endpoint share lanes, which bound the calls in flight.
type opener struct {
	options lanes.Options
	calls   Observer // nil: none

	mu    sync.Mutex         // guards lanes
	lanes map[string]*shared // by endpoint
}

type shared struct {
	*lanes.Limiter
	users int
}

func newOpener(o lanes.Options, calls Observer) *opener {
	return &opener{options: o, calls: calls, lanes: map[string]*shared{}}
}

// open opens the provider of a VPC. Worse is called when its calls say that the VPC should be looked up.
func (o *opener) open(vpc string, a access, worse func()) (*connection, error) {
	p, err := a.open()
	if err != nil {
		return nil, err
	}
	e := &callObserver{vpc: vpc, health: newHealth(worse), calls: o.calls}
	return &connection{
		access: a, provider: o.take(p.endpoint, p.provider.Traits().AtOnce).Provider(p.provider, e), health: e.health,
		close: sync.OnceFunc(func() {
			e.close()
			p.close()
			o.giveBack(p.endpoint)
		}),
	}, nil
}

// callObserver passes the calls of a VPC to its health and to the Observer.
type callObserver struct {
	vpc    string
	health *health

	mu    sync.Mutex // guards calls, also while it is called
	calls Observer   // nil: none
}

// close stops passing calls on. Replies to calls in flight would otherwise create metrics of a VPC that is gone.
func (e *callObserver) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = nil
}

// Called implements lanes.Observer.
func (e *callObserver) Called(op string, err error, waited, took time.Duration) {
	e.health.observe(op, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls != nil {
		e.calls.Called(e.vpc, op, err, waited, took)
	}
}

// take returns the lanes of an endpoint, which has up to most calls in flight; 0: as many as the options say.
func (o *opener) take(endpoint string, most int) *lanes.Limiter {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[endpoint]
	if l == nil {
		options := o.options
		options.Calls = cmp.Or(most, options.Calls)
		l = &shared{Limiter: lanes.New(options)}
		o.lanes[endpoint] = l
	}
	l.users++
	return l.Limiter
}

func (o *opener) giveBack(endpoint string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l := o.lanes[endpoint]; l != nil {
		if l.users--; l.users == 0 {
			delete(o.lanes, endpoint)
		}
	}
}

// usage is the sum of all lanes.
func (o *opener) usage() (out lanes.Usage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		u := l.Usage()
		out.Allowed, out.InFlight, out.Waiting = out.Allowed+u.Allowed, out.InFlight+u.InFlight, out.Waiting+u.Waiting
	}
	return out
}

// NotReady is why a VPC is not open, for a person.
type NotReady struct{ Reason, Message string }

// Error gives the message.
func (n *NotReady) Error() string { return n.Message }

// networks are the open VPCs, for other controllers. It implements podnics.Networks.
type networks struct {
	mu      sync.Mutex // guards all below
	answers map[string]answer
	tell    []func(vpc string)
}

// answer is what Of returns of a VPC; with why, the VPC is not open.
type answer struct {
	opened podnics.Opened
	why    *NotReady
}

var _ podnics.Networks = (*networks)(nil)

func newNetworks() *networks { return &networks{answers: map[string]answer{}} }

// Of implements podnics.Networks.
func (n *networks) Of(name string) (podnics.Opened, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.answers[name]
	switch {
	case !ok:
		return podnics.Opened{}, &NotReady{"VPCNotFound", fmt.Sprintf("no VPC %s, or none that was looked at yet", name)}
	case a.why != nil:
		return podnics.Opened{}, a.why
	}
	return a.opened, nil
}

// Changed implements podnics.Networks.
func (n *networks) Changed(tell func(vpc string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell = append(n.tell, tell)
}

// put sets the answer of a VPC; nil: there is no such VPC. If that changes it, those that registered by Changed
// are told.
func (n *networks) put(name string, a *answer) {
	for _, tell := range n.set(name, a) {
		tell(name)
	}
}

func (n *networks) set(name string, a *answer) []func(string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, known := n.answers[name]
	switch {
	case a == nil && !known, a != nil && known && was.same(*a):
		return nil
	case a == nil:
		delete(n.answers, name)
	default:
		n.answers[name] = *a
	}
	return slices.Clone(n.tell)
}

func (a answer) same(o answer) bool {
	if a.why != nil || o.why != nil {
		return a.why != nil && o.why != nil && *a.why == *o.why
	}
	return a.opened.UID == o.opened.UID && a.opened.Provider == o.opened.Provider && reflect.DeepEqual(a.opened.Network, o.opened.Network) && reflect.DeepEqual(a.opened.Spec, o.opened.Spec)
}

// patience is how many calls in a row must fail until a provider counts as not answering.
const patience = 3

// health is the result of all calls to a provider.
type health struct {
	worse func() // called, without locks, when the VPC should be looked up

	mu        sync.Mutex        // guards all below
	failures  int               // calls in a row without a useful answer
	forbidden map[string]string // by operation, the error that forbade the last call
}

func newHealth(worse func()) *health { return &health{worse: worse, forbidden: map[string]string{}} }

func (h *health) observe(op string, err error) {
	if h.note(op, err) {
		h.worse()
	}
}

func (h *health) note(op string, err error) (worse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.forbidden[op]
	switch vpcport.ClassOf(err) {
	case vpcport.Transient:
		if errors.Is(err, context.Canceled) { // by the caller
			return false
		}
		h.failures++
		return h.failures == patience
	case vpcport.Unauthorized, vpcport.NetworkGone:
		return op != lanes.OpNetwork // a look makes that call, and sees the error itself
	case vpcport.Forbidden:
		h.failures = 0
		h.forbidden[op] = err.Error()
		return was == ""
	case vpcport.Throttled: // the provider did nothing
		return false
	default:
		h.failures = 0
		delete(h.forbidden, op)
		return was != ""
	}
}

// away reports whether the provider does not answer.
func (h *health) away() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures >= patience
}

// denied is the error of an operation that the credentials may not do; empty: none was forbidden.
func (h *health) denied() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(h.forbidden)) {
		if op != lanes.OpNetwork {
			return h.forbidden[op]
		}
	}
	return ""
}
