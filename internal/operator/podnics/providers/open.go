package providers

import (
	"cmp"
	"sync"
	"time"

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
