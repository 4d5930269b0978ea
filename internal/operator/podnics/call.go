package podnics

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// caller makes the calls of a batch, and tells each job's answer once.
type caller struct {
	provider vpcport.Provider
	clock    clock.Clock
	tell     func(job, answer)
	most     int // ports of one Create, when the provider refused more; 0: as it says
}

func (c *caller) do(ctx context.Context, t tray, batch []job) {
	switch t {
	case creates:
		_ = c.create(ctx, batch) // each job is told
	case looks:
		c.look(ctx, batch)
	case polls:
		c.poll(ctx, batch)
	default:
		for _, j := range batch {
			c.single(ctx, j)
		}
	}
}

// create asks for the ports of a batch, and for those of its parts where it is refused. It
// returns the last error.
func (c *caller) create(ctx context.Context, batch []job) (err error) {
	ports := make([]vpcport.NewPort, len(batch))
	all := make([]int, len(batch))
	for i, j := range batch {
		ports[i], all[i] = j.want.New(), i
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
		for i, j := range batch {
			c.tell(j, answer{port: &made[i]})
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
		jobs := make([]job, len(part))
		for i, at := range part {
			jobs[i] = batch[at]
		}
		if last != nil && vpcport.PolicyOf(vpcport.ClassOf(last)).Scope != vpcport.ScopeNIC && sameRoom(batch) {
			c.fail(jobs, last) // a half of it had no room: this one would not either
			continue
		}
		last = c.create(ctx, jobs)
	}
	return last
}

// splits tells whether part of a batch may be made when all of it was refused.
func splits(c vpcport.Class) bool {
	switch c {
	case vpcport.Invalid, vpcport.ReferenceGone, vpcport.SubnetFull, vpcport.AddressTaken, vpcport.MACTaken, vpcport.OverQuota,
		vpcport.TooLarge, vpcport.Conflict:
		return true
	}
	return false
}

// sameRoom tells whether all jobs want addresses of the same subnets.
func sameRoom(batch []job) bool {
	for _, j := range batch {
		if subnetsOf(j.want) != subnetsOf(batch[0].want) {
			return false
		}
	}
	return true
}

func (c *caller) fail(batch []job, err error) {
	for _, j := range batch {
		c.tell(j, answer{err: err})
	}
}

// look asks for what there may be of the NICs of a batch: by their devices, by the IDs of
// given ports, and by MAC addresses that were refused. What a listing does not show
// although it is known to be there is asked for by itself, as listings may trail.
func (c *caller) look(ctx context.Context, batch []job) {
	began := c.clock.Now()
	var byDevice, byID, byMAC vpcport.Filter
	for _, j := range batch {
		switch {
		case j.want.Given != "":
			byID.IDs = append(byID.IDs, j.want.Given)
		default:
			byDevice.Devices = append(byDevice.Devices, j.want.Device)
		}
		if j.have.Collided {
			byMAC.NetworkID = j.want.Network
			byMAC.MACs = append(byMAC.MACs, j.want.MAC)
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
	for _, j := range batch {
		ports := ofJob(found, j)
		known := j.want.Given
		if known == "" {
			known = j.have.Recorded
		}
		var err error
		if known != "" && !hasID(ports, known) {
			ports, err = c.add(ctx, ports, known)
		}
		c.tell(j, answer{ports: ports, began: began, err: err})
	}
}

// ofJob are the ports that may be a job's: by the ID, by the device, by the MAC address.
func ofJob(found []vpcport.Port, j job) (out []vpcport.Port) {
	for _, p := range found {
		mine := p.ID == j.want.Given || p.Device == j.want.Device || sameMAC(p.MAC, j.want.MAC)
		if mine && !hasID(out, p.ID) {
			out = append(out, p)
		}
	}
	return out
}

func sameMAC(a, b mac.Addr) bool { return b != nil && a.String() == b.String() }

func hasID(ports []vpcport.Port, id string) bool {
	for _, p := range ports {
		if p.ID == id {
			return true
		}
	}
	return false
}

// add is ports with one that is asked for by itself, if it is there.
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
func (c *caller) poll(ctx context.Context, batch []job) {
	var f vpcport.Filter
	for _, j := range batch {
		f.IDs = append(f.IDs, j.step.Port)
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
	for _, j := range batch {
		p, listed := byID[j.step.Port]
		if listed {
			c.tell(j, answer{port: p})
			continue
		}
		got, err := c.provider.Get(ctx, j.step.Port)
		c.tell(j, answer{port: &got, err: err})
	}
}

// single changes or deletes one port.
func (c *caller) single(ctx context.Context, j job) {
	var a answer
	switch j.step.Kind {
	case nicplan.Change:
		revision := 0
		if p := j.have.Port; p != nil && p.ID == j.step.Port && j.step.Change.Device != nil {
			revision = p.Revision // nobody else may take it in this moment
		}
		a.err = failpoint.Around("operator.port.change", func() error {
			p, err := c.provider.Update(ctx, j.step.Port, revision, j.step.Change)
			a.port = &p
			return err
		})
	case nicplan.Delete:
		a.err = failpoint.Around("operator.port.delete", func() error { return c.provider.Delete(ctx, j.step.Port) })
	default:
		a.err = fmt.Errorf("no call does %v", j.step.Kind)
	}
	if a.err != nil {
		a.port = nil
	}
	c.tell(j, a)
}
