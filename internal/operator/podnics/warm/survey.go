package warm

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// surveyFirst lists a VPC's ports in a separate goroutine, once before any port is created in the VPC.
func (w *worker) surveyFirst(ctx context.Context, name string, v VPC) {
	now := w.o.Clock.Now()
	w.mu.Lock()
	done := !w.found[v.UID].IsZero() || now.Before(w.again[v.UID])
	w.mu.Unlock()
	w.surveyMu.Lock()
	defer w.surveyMu.Unlock()
	if done || w.surveying[name] {
		return
	}
	w.surveying[name] = true
	w.calls.Go(func() {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		began := w.o.Clock.Now()
		list, err := v.Provider.Ports(call, vpcport.Filter{NetworkID: v.Network, Owner: vpcport.Owner})
		if err == nil {
			err = w.Listed(call, name, list, began)
		}
		if err != nil && ctx.Err() == nil {
			w.o.Logger.Warn("listing warm ports failed, will try again", "vpc", name, "err", err)
			w.edit(func() { w.again[v.UID] = w.o.Clock.Now().Add(firstAgain) })
		}
		w.surveyMu.Lock()
		delete(w.surveying, name)
		w.surveyMu.Unlock()
		w.wake.Set()
	})
}

// Listed processes a listing of a VPC's ports that began at a given time.
func (p *Pool) Listed(ctx context.Context, vpc string, list []vpcport.Port, began time.Time) error {
	v, open := p.o.VPC(vpc)
	if !open {
		return nil
	}
	mine := map[string]vpcport.Port{}
	for _, o := range list {
		if uid, warm := o.WarmVPC(p.o.Cluster); warm && uid == v.UID {
			mine[o.ID] = o
		}
	}
	if found := p.compare(v, mine, began); len(found) > 0 {
		recorded, err := p.o.Recorded(ctx)
		if err != nil {
			return fmt.Errorf("list the warm ports recorded in PodNICs: %w", err)
		}
		p.adopt(vpc, v, found, recorded)
	}
	now := p.o.Clock.Now()
	p.edit(func() {
		if p.found[v.UID].IsZero() {
			p.found[v.UID] = now
		}
	})
	p.wake.Set()
	p.check(ctx, vpc, v)
	return nil
}

// compare updates the ports of the pool from a listing, and returns the listed ports that are not known.
func (p *Pool) compare(v VPC, listed map[string]vpcport.Port, began time.Time) (unknown []vpcport.Port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Clock.Now()
	for id, o := range p.ports {
		got, is := listed[id]
		switch {
		case o.uid != v.UID || o.deleting || !o.since.Before(began):
		case is:
			o.port = got
			o.found = o.found && began.Sub(o.since) < p.o.Settle // a deletion by an earlier operator would show by now
		default:
			if !o.doomed && !o.found {
				p.o.Logger.Warn("somebody else deleted a warm port", "vpc", o.vpc, "port", id, "host", o.port.Host)
			}
			delete(p.ports, id)
		}
	}
	for id, at := range p.taken {
		if _, is := listed[id]; !is && at.Before(began) {
			delete(p.taken, id) // it has a NIC's mark by now, or is gone
		}
	}
	has := map[string]bool{}
	for _, n := range p.nics {
		has[n.Port] = true
	}
	for id, o := range listed {
		if p.ports[id] == nil && p.over(id, now) && !p.creating[o.Device] && !has[id] {
			unknown = append(unknown, o)
		}
	}
	return unknown
}

// over reports whether a port was not taken, or was taken so long ago that the NIC would have recorded it. p.mu is held.
func (p *Pool) over(id string, now time.Time) bool {
	at, taken := p.taken[id]
	return !taken || now.Sub(at) >= p.o.Idle
}

// adopt adds unknown ports, except those recorded in PodNICs. Ports that were taken are added to be deleted.
func (p *Pool) adopt(vpc string, v VPC, found []vpcport.Port, recorded map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Clock.Now()
	for _, o := range found {
		if recorded[o.ID] || p.ports[o.ID] != nil || !p.over(o.ID, now) || p.creating[o.Device] {
			continue
		}
		_, taken := p.taken[o.ID]
		p.ports[o.ID] = &stocked{vpc: vpc, uid: v.UID, port: o, since: now, found: true, doomed: taken}
		p.o.Logger.Info("found a warm port", "vpc", vpc, "port", o.ID, "host", o.Host)
	}
}

// check clears the kind of a VPC's ports that are no longer like new ones, because somebody changed their groups, or the VPC's subnets or
// families. It also does so if that cannot be determined, for example because the host's trunk is gone.
func (p *Pool) check(ctx context.Context, vpc string, v VPC) {
	var kinds []demand
	p.edit(func() {
		has := map[Kind]bool{}
		for _, o := range p.ports {
			has[o.kind] = true
		}
		for k, d := range p.demands {
			if k.VPC == vpc && has[k] {
				kinds = append(kinds, *d)
			}
		}
	})
	for _, d := range kinds {
		r, err := resolve(ctx, v, d.request)
		if class := vpcport.ClassOf(err); err != nil && (class == vpcport.Transient || class == vpcport.Throttled) {
			continue // says nothing about the ports
		}
		p.edit(func() {
			for _, o := range p.ports {
				if o.kind == d.kind && (err != nil || !v.fits(o.port, d.kind.Host, r)) {
					o.kind = Kind{}
					p.o.Logger.Warn("a warm port is no longer like new ports", "vpc", vpc, "port", o.port.ID, "groups", o.port.Groups, "expected", r.Groups, "err", err)
				}
			}
		})
	}
}

// find assigns a found port to a matching demand, if there is one.
func (w *worker) find(ctx context.Context, d *demand, v VPC) (found bool, err error) {
	candidates := false
	w.edit(func() {
		for _, o := range w.ports {
			candidates = candidates || o.mayServe(d)
		}
	})
	if !candidates {
		return false, nil
	}
	r, err := resolve(ctx, v, w.asking(d))
	if err != nil {
		return false, err
	}
	w.edit(func() {
		for _, o := range w.ports {
			if !found && o.mayServe(d) && v.fits(o.port, d.kind.Host, r) {
				o.kind, found = d.kind, true
			}
		}
	})
	return found, nil
}

// mayServe reports whether a port without a kind may match a demand.
func (o *stocked) mayServe(d *demand) bool {
	return o.kind == Kind{} && o.vpc == d.kind.VPC && o.port.Host == d.kind.Host && !o.doomed && !o.found
}

// resolve determines what a new port would be like.
func resolve(ctx context.Context, v VPC, n vpcport.NewPort) (vpcport.Resolved, error) {
	resolver, ok := v.Provider.(vpcport.Resolver)
	if !ok {
		return vpcport.Resolved{}, fmt.Errorf("the provider of VPC %s has no warm ports", v.UID)
	}
	return resolver.Resolve(ctx, n)
}
