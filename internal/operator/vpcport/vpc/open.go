package vpc

import (
	"sync"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
	"github.com/berthnet/berth/internal/vpcport/neutron"
)

// tended is the provider of a VPC, with what came of its calls.
type tended struct {
	settings neutron.Settings
	provider vpcport.Provider // by the lanes of its endpoint
	health   *health
	close    func()
}

// opener opens providers. Those of one endpoint share lanes: it counts their calls
// together.
type opener struct {
	options lanes.Options

	mu    sync.Mutex // guards lanes
	lanes map[endpoint]*shared
}

type endpoint struct{ url, region string }

type shared struct {
	*lanes.Lanes
	users int
}

func newOpener(o lanes.Options) *opener { return &opener{options: o, lanes: map[endpoint]*shared{}} }

// open opens a provider. Worse is called when the VPC is to be looked at.
func (o *opener) open(s neutron.Settings, worse func()) (*tended, error) {
	p, err := neutron.Open(s)
	if err != nil {
		return nil, err
	}
	at := endpoint{p.Endpoint(), s.Region}
	h := newHealth(worse)
	return &tended{
		settings: s, provider: o.take(at).Provider(p, h.told), health: h,
		close: sync.OnceFunc(func() {
			p.Close()
			o.giveBack(at)
		}),
	}, nil
}

func (o *opener) take(at endpoint) *lanes.Lanes {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lanes[at]
	if l == nil {
		l = &shared{Lanes: lanes.New(o.options)}
		o.lanes[at] = l
	}
	l.users++
	return l.Lanes
}

func (o *opener) giveBack(at endpoint) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l := o.lanes[at]; l != nil {
		if l.users--; l.users == 0 {
			delete(o.lanes, at)
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
