package warm

import (
	"time"

	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// fail adds a failure to create ports. err is nil if the provider created a port that could not be bound.
func fail(b *retry.Backoff, now time.Time, err error) {
	class := vpcport.Conflict
	if err != nil {
		class = vpcport.ClassOf(err)
	}
	policy := vpcport.PolicyOf(class)
	b.Fail(now, max(policy.First, firstAgain), max(policy.Last, lastAgain))
}

// Nobody waits for these ports, so that the backoff is long.
const (
	firstAgain = 5 * time.Second
	lastAgain  = 5 * time.Minute
)

// most is how many calls that create ports are in flight at most, and how many that delete some.
const most = 8

func (v VPC) keepsNone() bool { return v.Ports == 0 || v.Ending }

// order is which ports are to be created and deleted now.
type order struct {
	make []*demand
	drop []*stocked
}

// plan decides what is to be done on all hosts, and marks it as in flight. Room is how many ports each host may
// have, and open has the open VPCs.
func (p *Pool) plan(now time.Time, room map[string]int, open map[string]VPC) (out order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hosts := p.hosts(now, room, open)
	making, going := 0, 0
	for _, d := range p.demands {
		making += d.making
	}
	for _, o := range p.ports {
		if o.deleting {
			going++
		}
	}
	for _, h := range hosts {
		v := decide(h)
		for _, k := range v.make {
			if h.unsure {
				break // a port that was found may do
			}
			if d := p.demands[k]; making < most && !now.Before(d.failed.Until) {
				d.making++
				making++
				out.make = append(out.make, d)
			}
		}
		for _, id := range v.keep {
			p.ports[id].spare = time.Time{}
		}
		for _, id := range v.spare {
			if o := p.ports[id]; o.spare.IsZero() {
				o.spare = now
			}
		}
		for _, id := range v.drop {
			o := p.ports[id]
			if going < most && !now.Before(o.again.Until) {
				o.deleting, o.doomed, o.kind = true, true, Kind{}
				going++
				out.drop = append(out.drop, o)
			}
		}
	}
	return out
}

// hosts are the hosts with ports or NICs. p.mu is held.
func (p *Pool) hosts(now time.Time, room map[string]int, open map[string]VPC) map[string]host {
	out := map[string]host{}
	edit := func(name string, do func(*host)) {
		h := out[name]
		do(&h)
		out[name] = h
	}
	all := make([]*demand, 0, len(p.demands))
	for _, d := range p.demands {
		all = append(all, d)
	}
	byUse(all)
	for _, d := range all {
		v, is := open[d.kind.VPC]
		edit(d.kind.Host, func(h *host) {
			if is && !v.Ending && !p.found[v.UID].IsZero() && d.isUsed(now, p.o.Idle) {
				h.wants = append(h.wants, wanted{d.kind, v.Ports})
			}
			for range d.making {
				h.making = append(h.making, d.kind)
			}
		})
	}
	for id, o := range p.ports {
		if v, is := open[o.vpc]; !is || v.UID != o.uid || o.deleting {
			edit(o.port.Host, func(h *host) { h.room-- }) // it takes room
			continue
		}
		if o.found && !o.doomed && !open[o.vpc].keepsNone() { // a listing will show whether it can be used
			edit(o.port.Host, func(h *host) { h.room, h.unsure = h.room-1, true })
			continue
		}
		s := stock{id: id, kind: o.kind}
		switch {
		case open[o.vpc].keepsNone(), o.doomed:
			s.idle = p.o.Keep
		case !o.spare.IsZero():
			s.idle = now.Sub(o.spare)
		}
		edit(o.port.Host, func(h *host) { h.ports = append(h.ports, s) })
	}
	for name, n := range p.onHost {
		edit(name, func(h *host) { h.room -= n })
	}
	for name, h := range out {
		h.room += room[name]
		h.keep = p.o.Keep
		out[name] = h
	}
	return out
}
