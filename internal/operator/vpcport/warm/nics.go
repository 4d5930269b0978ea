package warm

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/vpcport"
)

// NIC is what is to be known of one, of a provider whose ports may be made before they are needed.
type NIC struct {
	VPC        string // the VPC object
	Host, Node string // where its port is, or is to be: to the provider, and the Node's name
	Port       string // the ID of its port, as recorded; empty: none
	// Request is what is asked of the provider for a new port; nil: it takes none of the pool's, or
	// is over.
	Request *vpcport.NewPort
}

// demand is a kind of which ports are needed.
type demand struct {
	kind    Kind
	request vpcport.NewPort // for one of the kind, but for device and name
	used    time.Time       // when a NIC last had or wanted one
	making  int             // ports that are being made
	failed  failure
}

// Note takes in what is true of a NIC by now.
func (p *Pool) Note(uid types.UID, n NIC) {
	now := p.o.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.nics[uid]
	p.nics[uid] = n
	if n.Node != "" && n.Host != "" {
		p.nodes[n.Host] = n.Node
	}
	if n.Request != nil {
		if k, ok := KindOf(n.VPC, *n.Request); ok {
			d := p.demands[k]
			if d == nil {
				d = &demand{kind: k, request: *n.Request}
				p.demands[k] = d
				known = false
			}
			d.used = now
		}
	}
	if !known || before.Host != n.Host || (before.Request == nil) != (n.Request == nil) {
		p.wake.Set()
	}
}

// Forget drops a NIC whose PodNIC is gone.
func (p *Pool) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.nics[uid]; known {
		delete(p.nics, uid)
		p.wake.Set()
	}
}

// use notes which kinds are in demand, and forgets those that have not been for long, and hosts that
// nothing is on. p.mu is held.
func (p *Pool) use(now time.Time) {
	on := map[string]bool{}
	for _, n := range p.nics {
		on[n.Host] = true
		if n.Request == nil {
			continue
		}
		if k, ok := KindOf(n.VPC, *n.Request); ok {
			if d := p.demands[k]; d != nil {
				d.used = now
			}
		}
	}
	for k, d := range p.demands {
		if now.Sub(d.used) >= p.o.Idle && d.making == 0 {
			delete(p.demands, k)
			continue
		}
		on[k.Host] = true
	}
	for _, o := range p.ports {
		on[o.port.Host] = true
	}
	for host := range p.nodes {
		if !on[host] {
			delete(p.nodes, host)
		}
	}
}
