package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/node"
)

// PowerOff cuts a machine's power: its processes end, and its links are gone. The instance runs on in the cloud.
// PowerOn boots it again.
func (l *Lab) PowerOff(name string) error {
	m, err := l.machines.whole(name)
	if err != nil {
		return err
	}
	l.follower.following.Lock()
	defer l.follower.following.Unlock()
	m.dark = true
	return errors.Join(m.PowerOff(), l.follower.unplug(m))
}

// PowerOn boots a machine after PowerOff, with its disk, but an empty /run and new kernel network state, and waits
// until its kubelet runs. A machine that does not come up is powered off again.
func (l *Lab) PowerOn(ctx context.Context, name string) error {
	m, err := l.machines.whole(name)
	if err != nil {
		return err
	}
	if m.host.On() {
		return fmt.Errorf("%s is already on", name)
	}
	if err := l.follower.plug(m); err != nil {
		return fmt.Errorf("boot %s: %w", name, err)
	}
	err = m.Serve()
	if err == nil {
		err = m.host.Boot(ctx)
	}
	if err != nil {
		return errors.Join(err, l.PowerOff(name))
	}
	return nil
}

// Reboot shuts a machine down and boots it again.
func (l *Lab) Reboot(ctx context.Context, name string) error {
	m, err := l.machines.whole(name)
	if err != nil {
		return err
	}
	return errors.Join(m.host.Stop(), l.PowerOff(name), l.PowerOn(ctx, name))
}

// Machine returns a node's machine.
func (l *Lab) Machine(name string) (*host.Host, error) {
	m, err := l.machines.whole(name)
	if err != nil {
		return nil, err
	}
	return m.host, nil
}

// OwnAddrs are a node's own addresses: in a VPC those of its primary ENI.
func OwnAddrs(l *Lab, n *node.Node) []netip.Addr {
	if l.Site != nil {
		own := l.Site.Addrs(n.Name)
		return []netip.Addr{own.IPv4, own.IPv6}
	}
	return l.Snapshot().InstanceENIs(n.InstanceID)[0].Own()
}

// NodeAddrs are a node's own addresses of the pods' families, IPv4 first.
func (l *Lab) NodeAddrs(n *node.Node) []netip.Addr {
	return slices.DeleteFunc(OwnAddrs(l, n), func(a netip.Addr) bool { return !l.PodFamilies().Has(ipfamily.Of(a)) })
}
