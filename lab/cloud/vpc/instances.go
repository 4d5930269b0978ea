package vpc

import (
	"maps"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// terminatedShown is how long a terminated instance is still described
// (EC2 User Guide, "Terminate Amazon EC2 instances": about an hour).
const terminatedShown = time.Hour

// Instances are the virtual machines of a Cloud.
type Instances struct {
	world       *world
	store       *store
	attachments *attachments
	tokens      *clientTokens
	enis        *ENIs
	keys        *Keys
	account     string
	tags        map[string]string // of all instances and ENIs launched by the spec
}

// LaunchRequest is a request for identical instances.
type LaunchRequest struct {
	Name        string
	Type        string
	SubnetID    string
	Groups      []string
	Role        string
	ImageID     string
	Count       int
	Primary     netip.Addr // only with Count 1
	Addresses   AddressRequest
	Tags        Tags // of the instances
	ENITags     Tags // of their primary ENIs
	ClientToken string
	Requester   string
	id          string
}

// Run launches instances, all or none, and returns them as pending (or running, if launching takes no
// time). A repeated ClientToken returns its instances that are not terminated, or
// IdempotentInstanceTerminated if all are (EC2 API Reference, "Error codes").
func (is *Instances) Run(r LaunchRequest) (out []Instance, err error) {
	err = is.world.change(func() error {
		if prior, ok, err := is.tokens.replay(r.ClientToken, r); err != nil || ok {
			for _, id := range prior.ids {
				if i := is.store.instances.get(id); i != nil && i.State != Terminated {
					out = append(out, i.Clone())
				}
			}
			if ok && len(out) == 0 {
				return Errorf("IdempotentInstanceTerminated", "The client token '%s' was used for instances that have been terminated.", r.ClientToken)
			}
			return err
		}
		reservation := is.world.newID("r")
		for index := range max(1, r.Count) {
			i, err := is.launch(r, reservation, index)
			if err != nil {
				for _, done := range out {
					is.erase(done.ID)
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
		is.tokens.remember(r.ClientToken, idempotent{request: r, ids: ids})
		for _, i := range out {
			is.world.after(is.world.delays.Launch.D(), func() { is.start(i.ID) })
		}
		for n := range out {
			out[n] = is.store.instances.get(out[n].ID).Clone()
		}
		return nil
	})
	return out, err
}

// launch creates one pending instance with its primary ENI. The caller must hold the lock.
func (is *Instances) launch(r LaunchRequest, reservation string, index int) (*Instance, error) {
	if r.Type == "" {
		r.Type = "m5.large"
	}
	if _, ok := limits.Lookup(r.Type); !ok {
		return nil, invalid("Invalid value '%s' for InstanceType.", r.Type)
	}
	subnet := is.store.subnets.get(r.SubnetID)
	if subnet == nil {
		return nil, NotFound("subnet", r.SubnetID)
	}
	id := r.id
	if id == "" {
		id = is.world.newID("i")
	}
	i := &Instance{
		ID: id, Name: r.Name, ReservationID: reservation, Type: r.Type, State: Pending,
		VPCID: subnet.VPCID, SubnetID: subnet.ID, Zone: subnet.Zone, Role: r.Role, ImageID: r.ImageID,
		Launched: is.world.clock.Now(), Tags: maps.Clone(r.Tags), ClientToken: r.ClientToken, LaunchIndex: index,
	}
	if i.Name == "" {
		i.Name = r.Tags["Name"]
	}
	if _, err := is.store.checkGroups(subnet.VPCID, r.Groups); CodeOf(err) == unknownGroup {
		return nil, NotFound("sg", r.Groups...)
	} else if err != nil {
		return nil, err
	}
	is.store.putInstance(i)
	e, err := is.enis.create(CreateRequest{
		SubnetID: subnet.ID, Groups: r.Groups, Primary: r.Primary, Addresses: r.Addresses, Tags: r.ENITags, Requester: r.Requester,
	})
	if err == nil {
		if err = is.store.room(i, e); err != nil {
			is.enis.delete(e)
			if CodeOf(err) == "PrivateIpAddressLimitExceeded" {
				err = Errorf("InvalidInterface.IpAddressLimitExceeded", "The number of private addresses exceeds the limit for %s.", i.Type)
			}
		}
	}
	if err != nil {
		is.store.instances.drop(id)
		return nil, err
	}
	is.attachments.recordAttachment(i, e, 0, 0, Attached, true)
	return i, nil
}

// erase undoes a launch that was part of a failed request. The caller must hold the lock.
func (is *Instances) erase(id string) {
	for _, e := range is.attachments.instanceENIs(id) {
		is.attachments.endAttachment(e)
		is.enis.delete(is.store.enis.get(e.ID))
	}
	is.store.instances.drop(id)
}

// start makes a pending instance run. The caller must hold the lock.
func (is *Instances) start(id string) {
	i := is.store.instances.get(id)
	if i == nil || i.State != Pending {
		return
	}
	i = is.setState(i, Running)
	is.world.emit(InstanceLaunched, i, nil)
	for _, e := range is.attachments.instanceENIs(id) {
		if e.Attachment.Status == Attached {
			is.attachments.linkUp(e.ID, e.Attachment.ID)
		}
	}
}

func (is *Instances) setState(i *Instance, s InstanceState) *Instance {
	n := *i
	n.State = s
	is.store.putInstance(&n)
	return &n
}

// StateChange is the result of StopAll, StartAll and TerminateAll for one instance.
type StateChange struct {
	InstanceID        string
	Previous, Current InstanceState
}

// StopAll starts to stop instances. It does not change stopped ones.
func (is *Instances) StopAll(ids ...string) ([]StateChange, error) {
	return is.transition(ids, func(i *Instance) error {
		switch i.State {
		case Stopped, Stopping:
			return nil
		case Running:
			is.setState(i, Stopping)
			is.world.after(is.world.delays.Stop.D(), func() { is.stopped(i.ID) })
			return nil
		default:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be stopped.", i.ID)
		}
	})
}

func (is *Instances) stopped(id string) {
	i := is.store.instances.get(id)
	if i == nil || i.State != Stopping {
		return
	}
	i = is.setState(i, Stopped)
	for _, e := range is.attachments.instanceENIs(id) {
		n := e.Clone()
		n.Attachment.LinkUp = false
		is.store.putENI(&n)
	}
	is.world.emit(InstanceStopped, i, nil)
}

// StartAll starts stopped instances.
func (is *Instances) StartAll(ids ...string) ([]StateChange, error) {
	return is.transition(ids, func(i *Instance) error {
		switch i.State {
		case Running, Pending:
			return nil
		case Stopped:
			is.setState(i, Pending)
			is.world.after(is.world.delays.Launch.D(), func() { is.start(i.ID) })
			return nil
		default:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be started.", i.ID)
		}
	})
}

// TerminateAll starts to terminate instances. DeleteOnTermination of each attachment decides whether the
// ENI is deleted or becomes available.
func (is *Instances) TerminateAll(ids ...string) ([]StateChange, error) {
	return is.transition(ids, func(i *Instance) error {
		if i.State == Terminated || i.State == ShuttingDown {
			return nil
		}
		is.setState(i, ShuttingDown)
		is.world.after(is.world.delays.Terminate.D(), func() { is.terminated(i.ID) })
		return nil
	})
}

func (is *Instances) terminated(id string) {
	i := is.store.instances.get(id)
	if i == nil || i.State != ShuttingDown {
		return
	}
	for _, e := range is.attachments.instanceENIs(id) {
		gone := e.Attachment.DeleteOnTermination
		is.attachments.endAttachment(e)
		if gone {
			is.enis.delete(is.store.enis.get(e.ID))
		}
	}
	n := *i
	n.State, n.Ended = Terminated, is.world.clock.Now()
	is.store.putInstance(&n)
	is.world.emit(InstanceTerminated, &n, nil)
	is.world.eventually(terminatedShown, func() {
		is.store.instances.put(id, nil, is.world.clock.Now(), 0)
		delete(is.keys.current, id)
	})
}

// transition applies f to each instance if all of them exist.
func (is *Instances) transition(ids []string, f func(*Instance) error) (out []StateChange, err error) {
	err = is.world.change(func() error {
		var missing []string
		for _, id := range ids {
			if is.store.instances.get(id) == nil {
				missing = append(missing, id)
			}
		}
		if len(missing) > 0 {
			return NotFound("i", missing...)
		}
		for _, id := range ids {
			before := is.store.instances.get(id).State
			if err := f(is.store.instances.get(id)); err != nil {
				return err
			}
			out = append(out, StateChange{id, before, is.store.instances.get(id).State})
		}
		return nil
	})
	return out, err
}

// Terminate starts to terminate an instance, by ID or name.
func (is *Instances) Terminate(id string) error {
	_, err := is.TerminateAll(is.ID(id))
	return err
}

// Stop starts to stop an instance, by ID or name.
func (is *Instances) Stop(id string) error {
	_, err := is.StopAll(is.ID(id))
	return err
}

// ForceStop stops a stopping instance immediately, by ID or name (EC2 API reference, StopInstances, Force).
func (is *Instances) ForceStop(id string) error {
	id = is.ID(id)
	return is.world.change(func() error {
		switch i := is.store.instances.get(id); {
		case i == nil:
			return NotFound("i", id)
		case i.State != Stopping:
			return Errorf("IncorrectInstanceState", "The instance '%s' is not stopping: it is '%s'.", id, i.State)
		}
		is.stopped(id)
		return nil
	})
}

// Start starts an instance, by ID or name.
func (is *Instances) Start(id string) error {
	_, err := is.StartAll(is.ID(id))
	return err
}

// ID finds an instance by name. It returns an ID or an unknown name unchanged.
func (is *Instances) ID(name string) string {
	id := name
	is.world.read(func() {
		for _, i := range is.store.instances.all() {
			if i.Name == name && i.State != Terminated {
				id = i.ID
			}
		}
	})
	return id
}
