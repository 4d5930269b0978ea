package providers

import (
	"cmp"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// tended is the provider of a VPC, with what came of its calls.
type tended struct {
	access   access
	provider vpcport.Provider // by the lanes of its endpoint
	health   *health
	close    func()
}

// opener opens providers. Those of one endpoint share lanes: it counts their calls
// together.
type opener struct {
	options lanes.Options
	calls   Observer // nil: nobody

	mu    sync.Mutex         // guards lanes
	lanes map[string]*shared // by endpoint
}

type shared struct {
	*lanes.Lanes
	users int
}

func newOpener(o lanes.Options, calls Observer) *opener {
	return &opener{options: o, calls: calls, lanes: map[string]*shared{}}
}

// open opens the provider of a VPC. Worse is called when the VPC is to be looked at.
func (o *opener) open(vpc string, a access, worse func()) (*tended, error) {
	p, err := a.open()
	if err != nil {
		return nil, err
	}
	e := &ear{vpc: vpc, health: newHealth(worse), calls: o.calls}
	return &tended{
		access: a, provider: o.take(p.endpoint, p.provider.Traits().AtOnce).Provider(p.provider, e), health: e.health,
		close: sync.OnceFunc(func() {
			e.close()
			p.close()
			o.giveBack(p.endpoint)
		}),
	}, nil
}

// ear hears of the calls of a VPC, for its health and for whoever counts them.
type ear struct {
	vpc    string
	health *health

	mu    sync.Mutex // guards calls, also while it is told
	calls Observer   // nil: nobody
}

// close has nobody count what still comes of calls under way: their VPC may be gone, and would
// have metrics for ever.
func (e *ear) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = nil
}

// Called implements lanes.Observer.
func (e *ear) Called(op string, err error, waited, took time.Duration) {
	e.health.told(op, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls != nil {
		e.calls.Called(e.vpc, op, err, waited, took)
	}
}

// take are the lanes of an endpoint, which bears so many calls at once; 0: as many as the options say.
func (o *opener) take(endpoint string, most int) *lanes.Lanes {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[endpoint]
	if l == nil {
		options := o.options
		options.Most = cmp.Or(most, options.Most)
		l = &shared{Lanes: lanes.New(options)}
		o.lanes[endpoint] = l
	}
	l.users++
	return l.Lanes
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

// usage is that of all lanes together.
func (o *opener) usage() (out lanes.Usage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		u := l.Usage()
		out.Allowed, out.UnderWay, out.Waiting = out.Allowed+u.Allowed, out.UnderWay+u.UnderWay, out.Waiting+u.Waiting
	}
	return out
}
