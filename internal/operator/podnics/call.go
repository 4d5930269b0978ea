package podnics

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// caller makes the requests for a batch of calls, and gives each call its reply.
type caller struct {
	provider vpcport.Provider
	clock    clock.Clock
	reply    func(call, nicplan.Reply)
	most     int // ports of one Create after the provider refused more; 0: as its traits say
}

func (c *caller) do(ctx context.Context, k callKind, batch []call) {
	switch k {
	case creates:
		_ = c.create(ctx, batch) // each call has its reply
	case looks:
		c.look(ctx, batch)
	case polls:
		c.poll(ctx, batch)
	default:
		for _, each := range batch {
			c.single(ctx, each)
		}
	}
}

// create asks for the ports of a batch, and where that is refused for those of parts of it. It returns
// the last error.
func (c *caller) create(ctx context.Context, batch []call) (err error) {
	ports := make([]vpcport.NewPort, len(batch))
	all := make([]int, len(batch))
	for i, each := range batch {
		ports[i], all[i] = each.desired.Port, i
	}
	var made []vpcport.Port
	err = failpoint.Around("operator.port.create", func() (err error) {
		made, err = c.provider.Create(ctx, ports)
		return err
	})
	if err == nil && len(made) != len(batch) {
		err = &vpcport.Error{Class: vpcport.Bug, Op: "create ports", Message: fmt.Sprintf("asked for %d ports, got %d", len(batch), len(made))}
	}
	if err == nil {
		for i, each := range batch {
			c.reply(each, nicplan.Reply{Port: &made[i]})
		}
		return nil
	}
	var parts [][]int
	class := vpcport.ClassOf(err)
	if splits(class) {
		parts = nicplan.Split(all, ports, err)
	}
	if class == vpcport.TooLarge {
		c.most = max(1, len(batch)/2)
	}
	if len(parts) == 0 {
		c.fail(batch, err)
		return err
	}
	var last error
	for _, part := range parts {
		calls := make([]call, len(part))
		for i, at := range part {
			calls[i] = batch[at]
		}
		if last != nil && vpcport.PolicyOf(vpcport.ClassOf(last)).Scope != vpcport.ScopeNIC && sameRoom(batch) {
			c.fail(calls, last) // one half found no room, so the other would not either
			continue
		}
		last = c.create(ctx, calls)
	}
	return last
}

// splits reports whether part of a batch may succeed although all of it was refused.
func splits(c vpcport.Class) bool {
	switch c {
	case vpcport.Invalid, vpcport.ReferenceGone, vpcport.SubnetFull, vpcport.AddressTaken, vpcport.MACTaken, vpcport.OverQuota,
		vpcport.TooLarge, vpcport.Conflict:
		return true
	}
	return false
}

// sameRoom reports whether all calls ask for addresses of the same subnets.
func sameRoom(batch []call) bool {
	for _, each := range batch {
		if subnetsOf(each.desired) != subnetsOf(batch[0].desired) {
			return false
		}
	}
	return true
}

func (c *caller) fail(batch []call, err error) {
	for _, each := range batch {
		c.reply(each, nicplan.Reply{Err: err})
	}
}

// look asks for the ports that the NICs of a batch may have: by device, by the ID of a given port, and
// by a MAC address that was refused. A known port that the listing lacks is asked for by itself, as
// listings may be stale.
func (c *caller) look(ctx context.Context, batch []call) {
	began := c.clock.Now()
	var byDevice, byID, byMAC vpcport.Filter
	for _, each := range batch {
		switch {
		case each.desired.Given != "":
			byID.IDs = append(byID.IDs, each.desired.Given)
		default:
			byDevice.Devices = append(byDevice.Devices, each.desired.Port.Device)
		}
		if each.observed.Collided {
			byMAC.NetworkID = each.desired.Port.NetworkID
			byMAC.MACs = append(byMAC.MACs, each.desired.Port.MAC)
		}
	}
	var found []vpcport.Port
	for _, f := range []vpcport.Filter{byDevice, byID, byMAC} {
		if f.Empty() {
			continue
		}
		ports, err := c.provider.Ports(ctx, f)
		if err != nil {
			c.fail(batch, err)
			return
		}
		found = append(found, ports...)
	}
	for _, each := range batch {
		ports := matching(found, each)
		known := each.desired.Given
		if known == "" {
			known = each.observed.Recorded
		}
		var err error
		if known != "" && !hasID(ports, known) {
			ports, err = c.add(ctx, ports, known)
		}
		c.reply(each, nicplan.Reply{Ports: ports, Began: began, Err: err})
	}
}

// matching are the ports that may be those of a call's NIC: by ID, device or MAC address.
func matching(found []vpcport.Port, each call) (out []vpcport.Port) {
	for _, p := range found {
		d := each.desired
		byMAC := d.Port.MAC != nil && p.MAC.String() == d.Port.MAC.String()
		if (p.ID == d.Given || p.Device == d.Port.Device || byMAC) && !hasID(out, p.ID) {
			out = append(out, p)
		}
	}
	return out
}

func hasID(ports []vpcport.Port, id string) bool {
	return slices.ContainsFunc(ports, func(p vpcport.Port) bool { return p.ID == id })
}

// add adds the port with an ID to ports, if it exists.
func (c *caller) add(ctx context.Context, ports []vpcport.Port, id string) ([]vpcport.Port, error) {
	p, err := c.provider.Get(ctx, id)
	switch {
	case err == nil:
		return append(ports, p), nil
	case vpcport.ClassOf(err) == vpcport.PortGone:
		return ports, nil
	}
	return nil, err
}

// poll asks how the ports of a batch do.
func (c *caller) poll(ctx context.Context, batch []call) {
	var f vpcport.Filter
	for _, each := range batch {
		f.IDs = append(f.IDs, each.step.Port)
	}
	found, err := c.provider.Ports(ctx, f)
	if err != nil {
		c.fail(batch, err)
		return
	}
	byID := make(map[string]*vpcport.Port, len(found))
	for i := range found {
		byID[found[i].ID] = &found[i]
	}
	for _, each := range batch {
		p, listed := byID[each.step.Port]
		if listed {
			c.reply(each, nicplan.Reply{Port: p})
			continue
		}
		got, err := c.provider.Get(ctx, each.step.Port)
		c.reply(each, nicplan.Reply{Port: &got, Err: err})
	}
}

// single changes or deletes one port.
func (c *caller) single(ctx context.Context, each call) {
	var r nicplan.Reply
	switch each.step.Kind {
	case nicplan.Change:
		revision := 0
		if p := each.observed.Port; p != nil && p.ID == each.step.Port && each.step.Change.Device != nil {
			revision = p.Revision // fails if somebody else takes the port meanwhile
		}
		r.Err = failpoint.Around("operator.port.change", func() error {
			p, err := c.provider.Update(ctx, each.step.Port, revision, each.step.Change)
			r.Port = &p
			return err
		})
	case nicplan.Delete:
		r.Err = failpoint.Around("operator.port.delete", func() error { return c.provider.Delete(ctx, each.step.Port) })
	default:
		r.Err = fmt.Errorf("no call does %v", each.step.Kind)
	}
	if r.Err != nil {
		r.Port = nil
	}
	c.reply(each, r)
}
