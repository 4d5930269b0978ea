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

// noted is a NIC with the kind of port that it asks for; zero: none.
type noted struct {
	NIC
	kind Kind
	cold bool // it asked, and none was ready
}

// demand is a kind of which ports are needed.
type demand struct {
	kind    Kind
	request vpcport.NewPort // for one of the kind, but for device and name
	nics    int             // that have or want one
	used    time.Time       // when there was one last, where there is none
	making  int             // ports that are being made
	unclear []string        // devices of ports that may have been made, to be asked for again
	of      string          // the UID of the VPC object that those are of
	failed  failure
}

// Note takes in what is true of a NIC by now.
func (p *Pool) Note(uid types.UID, n NIC) {
	after := noted{NIC: n}
	if n.Request != nil {
		after.kind, _ = KindOf(n.VPC, *n.Request)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.nics[uid]
	after.cold = before.cold
	p.nics[uid] = after
	if d := p.demands[after.kind]; d != nil {
		d.request = *n.Request // as the VPC is by now
	}
	if known && before.kind == after.kind && before.Host == n.Host && before.Node == n.Node {
		return
	}
	if known {
		p.leaves(before)
	}
	p.comes(after)
	p.wake.Set()
}

// Forget drops a NIC whose PodNIC is gone.
func (p *Pool) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, known := p.nics[uid]; known {
		delete(p.nics, uid)
		p.leaves(n)
		p.wake.Set()
	}
}

// comes counts a NIC. p.mu is held.
func (p *Pool) comes(n noted) {
	p.onHost[n.Host]++
	if n.Host != "" && n.Node != "" {
		p.nodes[n.Host] = n.Node
	}
	if n.kind == (Kind{}) {
		return
	}
	d := p.demands[n.kind]
	if d == nil {
		d = &demand{kind: n.kind, request: *n.Request}
		p.demands[n.kind] = d
	}
	d.nics++
}

// leaves counts one less. p.mu is held.
func (p *Pool) leaves(n noted) {
	if p.onHost[n.Host]--; p.onHost[n.Host] == 0 {
		delete(p.onHost, n.Host)
	}
	if d := p.demands[n.kind]; d != nil {
		d.nics--
		d.used = p.o.Clock.Now()
	}
}

// isUsed tells whether there are to be ports of a kind at a moment.
func (d *demand) isUsed(now time.Time, idle time.Duration) bool {
	return d.nics > 0 || now.Sub(d.used) < idle
}

// tidy forgets the kinds that nobody has needed for long, and hosts that nothing is on. p.mu is
// held.
func (p *Pool) tidy(now time.Time) {
	on := map[string]bool{}
	for k, d := range p.demands {
		if !d.isUsed(now, p.o.Idle) && d.making == 0 {
			delete(p.demands, k)
			continue
		}
		on[k.Host] = true
	}
	for _, o := range p.ports {
		on[o.port.Host] = true
	}
	for host := range p.nodes {
		if !on[host] && p.onHost[host] == 0 {
			delete(p.nodes, host)
		}
	}
}
