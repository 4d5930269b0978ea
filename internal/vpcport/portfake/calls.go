package portfake

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// call makes a call: by the client's function if there is one, and through the front. do works with
// state.mu held.
func (p *Provider) call(ctx context.Context, op string, n int, do func() error) error {
	through := func(ctx context.Context) error {
		return p.Front.call(ctx, op, n, func() (err error) { p.set(func() { err = do() }); return err })
	}
	if p.via == nil {
		return through(ctx)
	}
	if err := p.via(ctx, through); err != nil {
		return wrapped(op, err)
	}
	return nil
}

// call delays a call, injects its fault and logs it.
func (f *Front) call(ctx context.Context, op string, n int, do func() error) error {
	err := f.turn(ctx)
	if err == nil {
		if fault := f.fault(op); fault == nil {
			err = do()
		} else {
			err = fault.fail(ctx, do)
		}
		if f.atOnce != nil {
			<-f.atOnce
		}
	}
	if err != nil {
		err = wrapped(op, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{op, n, f.clock.Now(), err})
	return err
}

// turn waits for the turn of a call and for its latency.
func (f *Front) turn(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if f.atOnce != nil {
		select {
		case f.atOnce <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if f.latency <= 0 {
		return nil
	}
	select {
	case <-f.clock.After(f.latency):
		return nil
	case <-ctx.Done():
		if f.atOnce != nil {
			<-f.atOnce
		}
		return context.Cause(ctx)
	}
}

// fail applies the fault to a call.
func (fault *Fault) fail(ctx context.Context, do func() error) error {
	var err error
	if fault.After {
		err = do()
	}
	if fault.Hang != nil {
		select {
		case <-fault.Hang:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return cmp.Or(err, fault.Err)
}

// wrapped makes any error a *vpcport.Error.
func wrapped(op string, err error) error {
	if _, ok := errors.AsType[*vpcport.Error](err); ok {
		return err
	}
	return &vpcport.Error{Class: vpcport.Transient, Op: op, Err: err}
}

func refuse(class vpcport.Class, op, about, message string) error {
	return &vpcport.Error{Class: class, Op: op, Status: 409, About: about, Message: message}
}

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits { return p.options.Traits }

// Project implements vpcport.Provider.
func (p *Provider) Project(ctx context.Context) (string, error) {
	return p.options.Project, p.call(ctx, "Project", 1, func() error { return nil })
}

// Network implements vpcport.Provider.
func (p *Provider) Network(ctx context.Context, idOrName string) (out vpcport.Network, err error) {
	err = p.call(ctx, "Network", 1, func() error {
		if n, ok := p.state.networks[idOrName]; ok {
			out = n
			return nil
		}
		var named []vpcport.Network
		for _, n := range p.state.networks {
			if n.Name == idOrName {
				named = append(named, n)
			}
		}
		switch len(named) {
		case 0:
			return refuse(vpcport.NetworkGone, "Network", idOrName, "no network "+idOrName)
		case 1:
			out = named[0]
			return nil
		default:
			return refuse(vpcport.Invalid, "Network", idOrName, "several networks are named "+idOrName)
		}
	})
	out.Subnets = slices.Clone(out.Subnets)
	return out, err
}

// Ports implements vpcport.Provider.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) (out []vpcport.Port, err error) {
	err = p.call(ctx, "Ports", max(len(f.IDs), len(f.Devices), len(f.MACs)), func() error {
		if f.Empty() || max(len(f.IDs), len(f.Devices), len(f.MACs)) > p.options.Traits.MaxFilter {
			return refuse(vpcport.Bug, "Ports", "", "a filter that is empty or too long")
		}
		shown := p.state.ports.listed()
		if len(f.IDs) > 0 { // the common case, which does not need all ports
			for _, id := range f.IDs {
				if o, ok := shown[id]; ok && matches(f, o) {
					out = append(out, copied(o))
				}
			}
			return nil
		}
		for _, o := range shown {
			if matches(f, o) {
				out = append(out, copied(o))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func matches(f vpcport.Filter, o vpcport.Port) bool {
	hasMAC := false
	for _, m := range f.MACs {
		hasMAC = hasMAC || m.String() == o.MAC.String()
	}
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, o.ID)) &&
		(len(f.Devices) == 0 || slices.Contains(f.Devices, o.Device)) &&
		(len(f.MACs) == 0 || hasMAC) &&
		(f.NetworkID == "" || f.NetworkID == o.NetworkID) &&
		(f.Owner == "" || f.Owner == o.Owner)
}

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (out vpcport.Port, err error) {
	err = p.call(ctx, "Get", 1, func() error {
		o, err := p.state.ports.find("Get", id)
		if err == nil {
			out = copied(o.Port)
		}
		return err
	})
	return out, err
}

func (ps *ports) find(op, id string) (*port, error) {
	o := ps.byID[id]
	if o == nil {
		return nil, refuse(vpcport.PortGone, op, id, "no port "+id)
	}
	return o, nil
}

// Update implements vpcport.Provider.
func (p *Provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (out vpcport.Port, err error) {
	err = p.call(ctx, "Update", 1, func() error {
		o, err := p.state.ports.find("Update", id)
		if err != nil {
			return err
		}
		if p.options.Traits.Revisions && revision != 0 && revision != o.Revision {
			return refuse(vpcport.Stale, "Update", id, "the port has another revision")
		}
		if err := p.state.knownGroups("Update", c.Groups); err != nil {
			return err
		}
		p.state.ports.changed(o, func() { p.state.apply(o, c) })
		out = copied(o.Port)
		return nil
	})
	return out, err
}

// apply changes a port. A port that leaves its host is down.
func (s *state) apply(o *port, c vpcport.Change) {
	if c.Device != nil {
		o.Device = *c.Device
	}
	if c.Owner != nil {
		o.Owner = *c.Owner
	}
	if c.Groups != nil {
		o.Groups = slices.Clone(c.Groups)
	}
	if c.Host != nil && (*c.Host != o.Host || o.Binding.Result == vpcport.BindingFailed) {
		if o.pluggedAt != *c.Host {
			s.ports.tears(o, "Update")
		}
		o.Host, o.Status = *c.Host, vpcport.StatusDown
		o.Binding = s.binding(o.Host)
	}
}

// binding is the result of binding to a host.
func (s *state) binding(host string) vpcport.Binding {
	plug, has := s.hosts[host]
	switch {
	case host == "":
		return vpcport.Binding{}
	case !has:
		return vpcport.Binding{Result: vpcport.BindingFailed}
	default:
		return vpcport.Binding{Result: vpcport.Bound, Plug: plug}
	}
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	return p.call(ctx, "Delete", 1, func() error {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.tears(o, "Delete")
			p.state.ports.drop(o)
		}
		return nil
	})
}
