package lab

import (
	"errors"
	"fmt"
	"sync"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// follower applies the cloud's events to machines, links and routes.
type follower struct {
	lab    *Lab
	cancel func() // unsubscribes

	following sync.Mutex      // held while an event is processed; guards machines' dark, and simulated
	simulated map[string]bool // IDs of instances that are no machines

	mu       sync.Mutex // guards all below; never held across I/O
	moved    *sync.Cond // on mu; when followed or closed changes
	followed uint64     // sequence number of the last processed event
	closed   bool
}

func newFollower(l *Lab) *follower {
	f := &follower{lab: l, cancel: func() {}, simulated: map[string]bool{}}
	f.moved = sync.NewCond(&f.mu)
	return f
}

// close waits until no event is being applied.
func (f *follower) close() {
	f.mu.Lock()
	f.closed = true
	f.moved.Broadcast()
	f.mu.Unlock()
	f.cancel()
	f.following.Lock() // let a running event finish first
	defer f.following.Unlock()
}

// follow applies the state of the cloud to the fabric, and then every further event.
func (f *follower) follow() error {
	f.following.Lock()
	defer f.following.Unlock()
	var from uint64
	f.cancel = f.lab.Cloud.Subscribe(func(ev vpc.Event) {
		f.following.Lock()
		defer f.following.Unlock()
		defer f.follows(ev.Seq)
		f.mu.Lock()
		skip := f.closed || ev.Seq <= from
		f.mu.Unlock()
		if skip {
			return
		}
		if err := f.apply(ev); err != nil {
			f.lab.note(fmt.Errorf("follow %s: %w", ev.Kind, err))
		}
	})
	snapshot := f.lab.Cloud.Snapshot()
	from = snapshot.Seq
	f.follows(from)
	if err := f.lab.Fabric.SetGroups(snapshot.Groups); err != nil {
		return err
	}
	for _, i := range snapshot.Instances {
		if i.State != vpc.Running {
			continue
		}
		if err := f.addMachine(i); err != nil {
			return err
		}
		if err := f.eachLink(snapshot, i.ID, f.attach); err != nil {
			return err
		}
	}
	return nil
}

// eachLink calls attach for each ENI of an instance whose link is up, and associates its branches.
func (f *follower) eachLink(snapshot vpc.Snapshot, instanceID string, attach func(vpc.ENI) error) error {
	for _, e := range snapshot.InstanceENIs(instanceID) {
		if !e.Attachment.LinkUp {
			continue
		}
		if err := attach(e); err != nil {
			return err
		}
		for _, b := range snapshot.Branches(e.ID) {
			if err := f.lab.Fabric.Associate(b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *follower) follows(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followed = max(f.followed, seq)
	f.moved.Broadcast()
}

// catchUp implements Lab.WaitEvents.
func (f *follower) catchUp() {
	if f.lab.Cloud == nil {
		return
	}
	seq := f.lab.Cloud.Seq()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.followed < seq && !f.closed {
		f.moved.Wait()
	}
}

// apply applies one event.
func (f *follower) apply(ev vpc.Event) error {
	switch ev.Kind {
	case vpc.InstanceLaunched:
		return f.addMachine(ev.Instance)
	case vpc.InstanceStopped:
		m, err := f.removeMachine(ev.Instance.ID)
		if m != nil && f.lab.modelled() {
			f.lab.Kube.nodes.stopped(m.Name)
		}
		return err
	case vpc.InstanceTerminated:
		m, err := f.removeMachine(ev.Instance.ID)
		if m != nil {
			err = errors.Join(err, m.Scrap())
		}
		if f.lab.Kube != nil { // with kubelets too, as a cloud controller does
			f.lab.Kube.nodes.terminated(nameOf(ev.Instance))
		}
		return err
	case vpc.ENIAttached:
		return f.attach(ev.ENI)
	case vpc.ENIDetached:
		return f.lab.Fabric.Detach(ev.ENI.ID)
	case vpc.ENIAssociated:
		if m := f.lab.machines.ofInstance(ev.Instance.ID); m == nil && f.simulated[ev.Instance.ID] || m != nil && m.dark {
			return nil // of a machine: together with its trunk, when the machine is plugged in
		}
		return f.lab.Fabric.Associate(ev.ENI)
	case vpc.ENIDisassociated:
		return f.lab.Fabric.Detach(ev.ENI.ID)
	case vpc.AddressesChanged, vpc.GroupsChanged:
		return f.lab.Fabric.Update(ev.ENI)
	case vpc.RulesChanged:
		return f.lab.Fabric.SetGroups(f.lab.Cloud.Snapshot().Groups)
	}
	return nil
}

// nameOf returns the name of an instance's node.
func nameOf(i vpc.Instance) string {
	if i.Name == "" {
		return i.ID
	}
	return i.Name
}

// addMachine powers an instance on, unless it is simulated.
func (f *follower) addMachine(i vpc.Instance) error {
	name := nameOf(i)
	if f.lab.Simulated != nil && f.lab.Simulated(name) {
		f.simulated[i.ID] = true
		return nil
	}
	if err := f.lab.machines.mayName(name); err != nil {
		return fmt.Errorf("instance %s: %w", i.ID, err)
	}
	if err := f.lab.Fabric.AddNode(name); err != nil {
		return err
	}
	if _, err := f.lab.machines.create(name, i.ID, f.lab.Fabric.NodePath(name), nodeOf(name, i)); err != nil {
		return errors.Join(err, f.lab.Fabric.RemoveNode(name))
	}
	return nil
}

// removeMachine powers an instance off and returns its machine, or nil if it was off.
func (f *follower) removeMachine(instanceID string) (*machine, error) {
	m := f.lab.machines.ofInstance(instanceID)
	if m == nil {
		return nil, nil
	}
	f.lab.machines.remove(m.Name)
	return m, errors.Join(m.PowerOff(), f.lab.Fabric.RemoveNode(m.Name))
}

// attach makes an ENI's link appear. The primary ENI boots the machine.
func (f *follower) attach(e vpc.ENI) error {
	if f.simulated[e.Attachment.InstanceID] {
		return nil
	}
	m := f.lab.machines.ofInstance(e.Attachment.InstanceID)
	if m == nil {
		return fmt.Errorf("attach %s: no node runs as %s", e.ID, e.Attachment.InstanceID)
	}
	if m.dark {
		return nil // it gets the link when it is plugged in
	}
	if err := f.lab.Fabric.Attach(m.Name, e); err != nil {
		return err
	}
	if !e.Attachment.Primary() {
		return nil
	}
	return f.lab.machines.boot(m, fmt.Sprintf("node %s (%s) has %v", m.Name, e.Attachment.InstanceID, e.Own()))
}

// unplug removes a machine's network namespace. The caller must hold following.
func (f *follower) unplug(m *machine) error {
	if f.lab.Site != nil {
		return f.lab.Site.RemoveNode(m.Name)
	}
	return f.lab.Fabric.RemoveNode(m.Name)
}

// plug creates a machine's network namespace again, with links of the attached ENIs. On failure it leaves nothing
// behind.
func (f *follower) plug(m *machine) error {
	f.following.Lock()
	defer f.following.Unlock()
	if !m.dark {
		return errors.New("the machine is powered on")
	}
	if err := f.addNetwork(m); err != nil {
		return errors.Join(err, f.unplug(m))
	}
	m.dark = false
	return nil
}

func (f *follower) addNetwork(m *machine) error {
	if f.lab.Site != nil {
		// The node gets its previous number again: the first free one.
		if _, err := f.lab.Site.AddNode(m.Name); err != nil || f.lab.Ports == nil {
			return err
		}
		_, err := f.lab.machines.joinPorts(m.Options)
		return err
	}
	if err := f.lab.Fabric.AddNode(m.Name); err != nil {
		return err
	}
	return f.eachLink(f.lab.Cloud.Snapshot(), m.InstanceID, func(e vpc.ENI) error { return f.lab.Fabric.Attach(m.Name, e) })
}
