package lab

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// follow brings the fabric to where the books are and keeps it there: every
// later event of the cloud is turned into links, routes and machines. CatchUp
// waits for that.
func (l *Lab) follow() error {
	l.following.Lock()
	defer l.following.Unlock()
	var from uint64
	l.cancel = l.Cloud.Subscribe(func(ev vpc.Event) {
		l.following.Lock()
		defer l.following.Unlock()
		defer l.follows(ev.Seq)
		l.mu.Lock()
		skip := l.closed || ev.Seq <= from
		l.mu.Unlock()
		if skip {
			return
		}
		if err := l.apply(ev); err != nil {
			l.note(fmt.Errorf("follow %s: %w", ev.Kind, err))
		}
	})
	books := l.Cloud.Snapshot()
	from = books.Seq
	l.follows(from)
	if err := l.Fabric.SetGroups(books.Groups); err != nil {
		return err
	}
	for _, i := range books.Instances {
		if i.State != vpc.Running {
			continue
		}
		if err := l.addMachine(i); err != nil {
			return err
		}
		for _, e := range books.InstanceENIs(i.ID) {
			if !e.Attachment.LinkUp {
				continue
			}
			if err := l.attach(e); err != nil {
				return err
			}
			for _, b := range books.Branches(e.ID) {
				if err := l.Fabric.Associate(b); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (l *Lab) follows(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followed = max(l.followed, seq)
	l.moved.Broadcast()
}

// CatchUp returns when the fabric has followed every event that the cloud's
// books contain now. A call of the cloud may return before that, when the
// cloud is busy telling of other events.
func (l *Lab) CatchUp() {
	if l.Cloud == nil {
		return
	}
	seq := l.Cloud.Snapshot().Seq
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.followed < seq && !l.closed {
		l.moved.Wait()
	}
}

// apply turns one event into machines, links and routes.
func (l *Lab) apply(ev vpc.Event) error {
	switch ev.Kind {
	case vpc.InstanceLaunched:
		return l.addMachine(ev.Instance)
	case vpc.InstanceStopped:
		m, err := l.removeMachine(ev.Instance.ID)
		if m != nil && l.modelled() {
			l.Kube.stopped(m.Name)
		}
		return err
	case vpc.InstanceTerminated:
		m, err := l.removeMachine(ev.Instance.ID)
		if m != nil {
			err = errors.Join(err, m.Scrap())
		}
		if l.Kube != nil { // with kubelets this is a cloud's controller's too
			l.Kube.terminated(nameOf(ev.Instance))
		}
		return err
	case vpc.ENIAttached:
		return l.attach(ev.ENI)
	case vpc.ENIDetached:
		return l.Fabric.Detach(ev.ENI.ID)
	case vpc.ENIAssociated:
		if m := l.machine(ev.Instance.ID); m != nil && m.dark {
			return nil // as its trunk, when it is plugged in
		}
		return l.Fabric.Associate(ev.ENI)
	case vpc.ENIDisassociated:
		return l.Fabric.Disassociate(ev.ENI.ID)
	case vpc.AddressesChanged, vpc.GroupsChanged:
		return l.Fabric.Update(ev.ENI)
	case vpc.RulesChanged:
		return l.Fabric.SetGroups(l.Cloud.Snapshot().Groups)
	}
	return nil
}

// nameOf is what an instance's node is called.
func nameOf(i vpc.Instance) string {
	if i.Name == "" {
		return i.ID
	}
	return i.Name
}

// addMachine turns an instance's power on.
func (l *Lab) addMachine(i vpc.Instance) error {
	name := nameOf(i)
	if err := l.mayName(name); err != nil {
		return fmt.Errorf("instance %s: %w", i.ID, err)
	}
	if err := l.Fabric.AddNode(name); err != nil {
		return err
	}
	if _, err := l.newMachine(name, i.ID, l.Fabric.NodePath(name), nodeOf(name, i)); err != nil {
		return errors.Join(err, l.Fabric.RemoveNode(name))
	}
	return nil
}

// removeMachine pulls an instance's plug and returns what was its machine;
// nil when it did not run.
func (l *Lab) removeMachine(instanceID string) (*machine, error) {
	m := l.machine(instanceID)
	if m == nil {
		return nil, nil
	}
	l.mu.Lock()
	delete(l.nodes, m.Name)
	l.mu.Unlock()
	return m, errors.Join(m.PowerOff(), l.Fabric.RemoveNode(m.Name))
}

// machine finds a running instance; nil when it does not run.
func (l *Lab) machine(instanceID string) *machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.nodes {
		if m.InstanceID == instanceID {
			return m
		}
	}
	return nil
}

// attach makes an ENI's link appear. With the primary one the machine has
// booted.
func (l *Lab) attach(e vpc.ENI) error {
	m := l.machine(e.Attachment.InstanceID)
	if m == nil {
		return fmt.Errorf("attach %s: no node runs as %s", e.ID, e.Attachment.InstanceID)
	}
	if m.dark {
		return nil // it gets the link when it is plugged in
	}
	if err := l.Fabric.Attach(m.Name, e); err != nil {
		return err
	}
	if !e.Attachment.Primary() {
		return nil
	}
	return l.boot(m, fmt.Sprintf("node %s (%s) has %v", m.Name, e.Attachment.InstanceID, e.Own()))
}
