package lab

import (
	"context"
	"errors"
	"fmt"
)

// wholeMachine finds a machine of a lab with kubelets.
func (l *Lab) wholeMachine(name string) (*machine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.nodes[name]; m != nil && m.host != nil {
		return m, nil
	}
	return nil, fmt.Errorf("no machine %q is in the lab, or it has no kubelets", name)
}

// PullPlug ends all that runs on a machine at once, and leaves it dark: it has no link
// to its network any more. The cloud does not notice: the instance runs. PlugIn boots
// it again.
func (l *Lab) PullPlug(name string) error {
	m, err := l.wholeMachine(name)
	if err != nil {
		return err
	}
	l.following.Lock()
	defer l.following.Unlock()
	m.dark = true
	return errors.Join(m.PowerOff(), l.unplugNetwork(m))
}

// PlugIn boots a machine whose plug was pulled: its disk is as it was; its /run and what
// the kernel knew of its network are not. It returns when its kubelet runs. A machine that
// does not come up is dark again.
func (l *Lab) PlugIn(ctx context.Context, name string) error {
	m, err := l.wholeMachine(name)
	if err != nil {
		return err
	}
	if m.host.On() {
		return fmt.Errorf("%s is on already", name)
	}
	if err := l.plugNetwork(m); err != nil {
		return fmt.Errorf("boot %s: %w", name, err)
	}
	err = m.Serve()
	if err == nil {
		err = m.host.Boot(ctx)
	}
	if err != nil {
		return errors.Join(err, l.PullPlug(name))
	}
	return nil
}

// Reboot turns a machine off, as an administrator does, and on again.
func (l *Lab) Reboot(ctx context.Context, name string) error {
	m, err := l.wholeMachine(name)
	if err != nil {
		return err
	}
	return errors.Join(m.host.Stop(), l.PullPlug(name), l.PlugIn(ctx, name))
}

// unplugNetwork removes a machine's network namespace with all that its kernel knew.
// The caller holds following.
func (l *Lab) unplugNetwork(m *machine) error {
	if l.Site != nil {
		return l.Site.RemoveNode(m.Name)
	}
	return l.Fabric.RemoveNode(m.Name)
}

// plugNetwork makes it again, with the links that are the machine's: those of the ENIs
// that are attached now. On failure nothing is left of it.
func (l *Lab) plugNetwork(m *machine) error {
	l.following.Lock()
	defer l.following.Unlock()
	if !m.dark {
		return errors.New("its plug is in")
	}
	if err := l.addNetwork(m); err != nil {
		return errors.Join(err, l.unplugNetwork(m))
	}
	m.dark = false
	return nil
}

func (l *Lab) addNetwork(m *machine) error {
	if l.Site != nil {
		// It gets the number that it had: the first that is free.
		if _, err := l.Site.AddNode(m.Name); err != nil || l.Ports == nil {
			return err
		}
		_, err := l.joinPorts(m.Options)
		return err
	}
	if err := l.Fabric.AddNode(m.Name); err != nil {
		return err
	}
	books := l.Cloud.Snapshot()
	for _, e := range books.InstanceENIs(m.InstanceID) {
		if !e.Attachment.LinkUp {
			continue
		}
		if err := l.Fabric.Attach(m.Name, e); err != nil {
			return err
		}
		for _, b := range books.Branches(e.ID) {
			if err := l.Fabric.Associate(b); err != nil {
				return err
			}
		}
	}
	return nil
}
