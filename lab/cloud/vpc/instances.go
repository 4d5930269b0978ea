package vpc

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// terminatedShown is how long a terminated instance is still described
// (EC2 User Guide, "Terminate Amazon EC2 instances": about an hour).
const terminatedShown = time.Hour

// LaunchRequest asks for instances that are all alike.
type LaunchRequest struct {
	Name        string
	Type        string
	SubnetID    string
	Groups      []string
	Role        string
	ImageID     string
	Count       int
	Primary     netip.Addr // with Count 1 only
	Addresses   AddressRequest
	Tags        Tags // of the instances
	ENITags     Tags // of their primary ENIs
	ClientToken string
	Requester   string
	id          string
}

// idempotent is what a client token stands for.
type idempotent struct {
	request any
	enis    []ENI
	ids     []string
	at      time.Time
}

// RunInstances launches instances, all or none, and returns them as pending
// (or running, when launching takes no time). The same ClientToken with the
// same request gives those of its instances that are not terminated, and
// IdempotentInstanceTerminated when all are (EC2 API Reference, "Error codes").
func (c *Cloud) RunInstances(r LaunchRequest) (out []Instance, err error) {
	err = c.change(func() error {
		if prior, ok, err := c.replay(r.ClientToken, r); err != nil || ok {
			for _, id := range prior.ids {
				if i := c.instances.get(id); i != nil && i.State != Terminated {
					out = append(out, i.Clone())
				}
			}
			if ok && len(out) == 0 {
				return Errorf("IdempotentInstanceTerminated", "The client token '%s' was used for instances that have been terminated.", r.ClientToken)
			}
			return err
		}
		reservation := c.newID("r")
		for index := range max(1, r.Count) {
			i, err := c.launch(r, reservation, index)
			if err != nil {
				for _, done := range out {
					c.erase(done.ID)
				}
				out = nil
				return err
			}
			out = append(out, i.Clone())
		}
		ids := make([]string, len(out))
		for n, i := range out {
			ids[n] = i.ID
		}
		c.remember(r.ClientToken, idempotent{request: r, ids: ids})
		for _, i := range out {
			c.after(c.delays.Launch.D(), func() { c.start(i.ID) })
		}
		for n := range out {
			out[n] = c.instances.get(out[n].ID).Clone()
		}
		return nil
	})
	return out, err
}

// replay finds what a client token already stands for. An empty token never
// stands for anything. The lock is held.
func (c *Cloud) replay(token string, request any) (idempotent, bool, error) {
	prior, ok := c.tokens[token]
	if !ok || token == "" {
		return idempotent{}, false, nil
	}
	if !reflect.DeepEqual(prior.request, request) {
		return idempotent{}, false, Errorf("IdempotentParameterMismatch",
			"Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	return prior, true, nil
}

// remember keeps what a client token stands for, for a day. The lock is held.
func (c *Cloud) remember(token string, v idempotent) {
	if token == "" {
		return
	}
	v.at = c.clock.Now()
	c.tokens[token] = v
	c.eventually(24*time.Hour, func() { delete(c.tokens, token) })
}

// launch makes one pending instance with its primary ENI. The lock is held.
func (c *Cloud) launch(r LaunchRequest, reservation string, index int) (*Instance, error) {
	if r.Type == "" {
		r.Type = "m5.large"
	}
	if _, ok := limits.Lookup(r.Type); !ok {
		return nil, invalid("Invalid value '%s' for InstanceType.", r.Type)
	}
	subnet := c.subnets.get(r.SubnetID)
	if subnet == nil {
		return nil, NotFound("subnet", r.SubnetID)
	}
	id := r.id
	if id == "" {
		id = c.newID("i")
	}
	i := &Instance{
		ID: id, Name: r.Name, ReservationID: reservation, Type: r.Type, State: Pending,
		VPCID: subnet.VPCID, SubnetID: subnet.ID, Zone: subnet.Zone, Role: r.Role, ImageID: r.ImageID,
		Launched: c.clock.Now(), Tags: maps.Clone(r.Tags), ClientToken: r.ClientToken, LaunchIndex: index,
	}
	if i.Name == "" {
		i.Name = r.Tags["Name"]
	}
	if _, err := c.checkGroups(subnet.VPCID, r.Groups); CodeOf(err) == unknownGroup {
		return nil, NotFound("sg", r.Groups...)
	} else if err != nil {
		return nil, err
	}
	c.putInstance(i)
	e, err := c.create(CreateRequest{
		SubnetID: subnet.ID, Groups: r.Groups, Primary: r.Primary, Addresses: r.Addresses, Tags: r.ENITags, Requester: r.Requester,
	})
	if err == nil {
		if err = c.room(i, e); err != nil {
			c.delete(e)
			if CodeOf(err) == "PrivateIpAddressLimitExceeded" {
				err = Errorf("InvalidInterface.IpAddressLimitExceeded", "The number of private addresses exceeds the limit for %s.", i.Type)
			}
		}
	}
	if err != nil {
		c.instances.drop(id)
		return nil, err
	}
	c.recordAttachment(i, e, 0, 0, Attached, true)
	return i, nil
}

// erase undoes a launch that was part of a failed request. The lock is held.
func (c *Cloud) erase(id string) {
	for _, e := range c.instanceENIs(id) {
		c.endAttachment(e)
		c.delete(c.enis.get(e.ID))
	}
	c.instances.drop(id)
}

// start makes a pending instance run. The lock is held.
func (c *Cloud) start(id string) {
	i := c.instances.get(id)
	if i == nil || i.State != Pending {
		return
	}
	i = c.setState(i, Running)
	c.emit(InstanceLaunched, i, nil)
	for _, e := range c.instanceENIs(id) {
		if e.Attachment.Status == Attached {
			c.linkUp(e.ID, e.Attachment.ID)
		}
	}
}

func (c *Cloud) setState(i *Instance, s InstanceState) *Instance {
	n := *i
	n.State = s
	c.putInstance(&n)
	return &n
}

// instanceENIs lists an instance's ENIs by network card and device index. The lock is held.
func (c *Cloud) instanceENIs(instanceID string) []*ENI {
	var out []*ENI
	for id := range c.attachedENIs[instanceID] {
		out = append(out, c.enis.get(id))
	}
	slices.SortFunc(out, func(a, b *ENI) int { return bySlot(a.Attachment, b.Attachment) })
	return out
}

// StateChange is what StopInstances and its like answer for one instance.
type StateChange struct {
	InstanceID        string
	Previous, Current InstanceState
}

// StopInstances begins to stop instances. Stopped ones are left as they are.
func (c *Cloud) StopInstances(ids ...string) ([]StateChange, error) {
	return c.transition(ids, func(i *Instance) error {
		switch i.State {
		case Stopped, Stopping:
			return nil
		case Running:
			c.setState(i, Stopping)
			c.after(c.delays.Stop.D(), func() { c.stopped(i.ID) })
			return nil
		default:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be stopped.", i.ID)
		}
	})
}

func (c *Cloud) stopped(id string) {
	i := c.instances.get(id)
	if i == nil || i.State != Stopping {
		return
	}
	i = c.setState(i, Stopped)
	for _, e := range c.instanceENIs(id) {
		n := e.Clone()
		n.Attachment.LinkUp = false
		c.putENI(&n)
	}
	c.emit(InstanceStopped, i, nil)
}

// StartInstances begins to start stopped instances.
func (c *Cloud) StartInstances(ids ...string) ([]StateChange, error) {
	return c.transition(ids, func(i *Instance) error {
		switch i.State {
		case Running, Pending:
			return nil
		case Stopped:
			c.setState(i, Pending)
			c.after(c.delays.Launch.D(), func() { c.start(i.ID) })
			return nil
		default:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be started.", i.ID)
		}
	})
}

// TerminateInstances begins to terminate instances. Their ENIs go with them or
// become available, as each attachment's DeleteOnTermination says.
func (c *Cloud) TerminateInstances(ids ...string) ([]StateChange, error) {
	return c.transition(ids, func(i *Instance) error {
		if i.State == Terminated || i.State == ShuttingDown {
			return nil
		}
		c.setState(i, ShuttingDown)
		c.after(c.delays.Terminate.D(), func() { c.terminated(i.ID) })
		return nil
	})
}

func (c *Cloud) terminated(id string) {
	i := c.instances.get(id)
	if i == nil || i.State != ShuttingDown {
		return
	}
	for _, e := range c.instanceENIs(id) {
		gone := e.Attachment.DeleteOnTermination
		c.endAttachment(e)
		if gone {
			c.delete(c.enis.get(e.ID))
		}
	}
	n := *i
	n.State, n.Ended = Terminated, c.clock.Now()
	c.putInstance(&n)
	c.emit(InstanceTerminated, &n, nil)
	c.eventually(terminatedShown, func() {
		c.instances.put(id, nil, c.clock.Now(), 0)
		delete(c.credentials.current, id)
	})
}

// transition applies f to each instance, all or none of the IDs existing.
func (c *Cloud) transition(ids []string, f func(*Instance) error) (out []StateChange, err error) {
	err = c.change(func() error {
		var missing []string
		for _, id := range ids {
			if c.instances.get(id) == nil {
				missing = append(missing, id)
			}
		}
		if len(missing) > 0 {
			return NotFound("i", missing...)
		}
		for _, id := range ids {
			before := c.instances.get(id).State
			if err := f(c.instances.get(id)); err != nil {
				return err
			}
			out = append(out, StateChange{id, before, c.instances.get(id).State})
		}
		return nil
	})
	return out, err
}

// TerminateInstance begins to terminate an instance, named by ID or name.
func (c *Cloud) TerminateInstance(id string) error {
	_, err := c.TerminateInstances(c.InstanceID(id))
	return err
}

// StopInstance begins to stop an instance, named by ID or name.
func (c *Cloud) StopInstance(id string) error {
	_, err := c.StopInstances(c.InstanceID(id))
	return err
}

// ForceStop stops an instance, named by ID or name, that is stopping, at once,
// however long that would have taken yet (EC2 API reference, StopInstances, Force).
func (c *Cloud) ForceStop(id string) error {
	id = c.InstanceID(id)
	return c.change(func() error {
		switch i := c.instances.get(id); {
		case i == nil:
			return NotFound("i", id)
		case i.State != Stopping:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not stopping: it is '%s'.", id, i.State)
		}
		c.stopped(id)
		return nil
	})
}

// StartInstance begins to start an instance, named by ID or name.
func (c *Cloud) StartInstance(id string) error {
	_, err := c.StartInstances(c.InstanceID(id))
	return err
}

// InstanceID finds an instance by name; an ID or an unknown name is returned as it is.
func (c *Cloud) InstanceID(name string) string {
	id := name
	c.read(func() {
		for _, i := range c.instances.all() {
			if i.Name == name && i.State != Terminated {
				id = i.ID
			}
		}
	})
	return id
}
