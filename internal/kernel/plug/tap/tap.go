// Package tap puts a tap device for a VM runtime into a pod, in place of the pod's interface. It forwards frames between
// the device and the port that another Plugger has put into the pod:
//
//	tap device (named like the pod's interface) = the port's link (named nic and plug.Ref.Short)
//
// The runtime opens the device by the name of the pod's interface (TUNSETIFF) and gives the machine its MAC address,
// which is the port's. The machine has the port's addresses; the pod's namespace has none. The device persists
// while berthd is not running. Filters forward frames before the pod's network stack sees them, so frames for the
// MAC addresses of the links themselves are not lost.
package tap

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var _ = failpoint.Register("plug.tap.port.after", "plug.tap.made.after", "plug.tap.named.after", "plug.tap.joined.after",
	"plug.tap.removed.after")

// Plugger adds tap devices for virtual machines to the ports of another Plugger.
type Plugger struct {
	plug.Plugger
	node    rtnl.NetnsID
	turns   plug.Turns
	sysctls string
}

// New wraps a Plugger for the node, whose network namespace is that of the calling thread. sysctls
// is the sysctl folder; empty: /proc/sys.
func New(inner plug.Plugger, sysctls string) (*Plugger, error) {
	node, err := rtnl.InspectNetns("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return &Plugger{Plugger: inner, node: node, sysctls: sysctls}, nil
}

// Names of a port's links in the pod. The tap device has the name of the interface.
func portLink(r plug.Ref) string      { return "nic" + r.Short() }
func temporaryName(r plug.Ref) string { return "new" + r.Short() } // the tap device until it has its alias

// inner is the port for the wrapped Plugger: a link without addresses.
func inner(w plug.Want) plug.Want {
	w.Binding = ""
	w.Pod.IfName = portLink(w.Ref)
	w.Interface = plug.Interface{MAC: w.Interface.MAC, MTU: w.Interface.MTU, Bare: true}
	return w
}

// open opens the namespace of a pod.
func (p *Plugger) open(pod plug.Pod) (*podif.Namespace, error) {
	s, err := podif.OpenPod(pod, p.node)
	if err == nil {
		s.Sysctls = p.sysctls
	}
	return s, err
}

// Plug implements plug.Plugger. It may also return plug.ErrNoTun.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if w.Binding != plug.BindingTap {
		return p.Plugger.Plug(ctx, w)
	}
	if err := w.Validate(); err != nil {
		return plug.Done{}, err
	}
	over, err := p.turns.Take(ctx, w.PortID)
	if err != nil {
		return plug.Done{}, err
	}
	defer over()
	pod, err := p.open(w.Pod)
	if err != nil {
		return w.Plugged(plug.Done{}, err)
	}
	defer pod.Close()
	// Check before plugging, so that a name conflict leaves nothing behind.
	if err := mayHave(pod, w); err != nil {
		return w.Plugged(plug.Done{}, err)
	}
	done, err := p.Plugger.Plug(ctx, inner(w))
	if err == nil {
		err = failpoint.Hit("plug.tap.port.after")
	}
	if err != nil {
		return plug.Done{}, err
	}
	if err := connect(pod, w); err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as tap device %s: %w", w.PortID, w.Pod.IfName, err)
	}
	return done, nil
}

// mayHave returns nil if the name of the tap device is free in the pod or used by this port's
// device.
func mayHave(pod *podif.Namespace, w plug.Want) error {
	l, err := pod.Link(w.Pod.IfName)
	if err != nil || l == nil || mine(l, w.Ref) && isTap(l) {
		return err
	}
	return fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
}

func mine(l netlink.Link, r plug.Ref) bool {
	other, ok := plug.ParseMark(l.Attrs().Alias)
	return ok && other.Attachment == r.Attachment && other.PortID == r.PortID
}

func isTap(l netlink.Link) bool {
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TAP
}

// connect creates the tap device and the filters between it and the port's link.
func connect(pod *podif.Namespace, w plug.Want) error {
	nic, err := pod.NL.LinkByName(portLink(w.Ref))
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", portLink(w.Ref), pod.Path, err)
	}
	device, err := ensureTap(pod, w)
	if err != nil {
		return err
	}
	if err := pod.Silence(device.Attrs().Name); err != nil {
		return err
	}
	if err := errors.Join(redirect(pod, nic, device), redirect(pod, device, nic)); err != nil {
		return err
	}
	if err := failpoint.Hit("plug.tap.joined.after"); err != nil {
		return err
	}
	if err := pod.NL.LinkSetUp(device); err != nil {
		return fmt.Errorf("set %s up in %s: %w", device.Attrs().Name, pod.Path, err)
	}
	return nil
}

// Await implements plug.Plugger.
func (p *Plugger) Await(ctx context.Context, w plug.Want) error {
	if w.Binding != plug.BindingTap {
		return p.Plugger.Await(ctx, w)
	}
	return p.Plugger.Await(ctx, inner(w))
}

// Unplug implements plug.Plugger. It removes the tap device even while a machine has it open; the
// machine's reads then fail (EBADFD).
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	over, err := p.turns.Take(ctx, r.PortID)
	if err != nil {
		return err
	}
	defer over()
	pod, err := p.open(r.Pod)
	if err == nil {
		err = removeTap(pod, r)
		pod.Close()
		if err == nil {
			err = failpoint.Hit("plug.tap.removed.after")
		}
		if err != nil {
			return r.Unplugged(err)
		}
	}
	// If the namespace cannot be opened, the wrapped Plugger decides whether that is an error.
	return p.Plugger.Unplug(ctx, r)
}

// removeTap removes the device that connect created, and thereby its filters.
func removeTap(pod *podif.Namespace, r plug.Ref) error {
	links, err := rtnl.Whole(pod.NL.LinkList)
	if err != nil {
		return fmt.Errorf("list links in %s: %w", pod.Path, err)
	}
	for _, l := range links {
		begun := l.Attrs().Alias == "" && l.Attrs().Name == temporaryName(r)
		if !isTap(l) || !mine(l, r) && !begun {
			continue
		}
		if err := pod.NL.LinkDel(l); err != nil && !rtnl.IsNoLink(err) {
			return fmt.Errorf("remove %s in %s: %w", l.Attrs().Name, pod.Path, err)
		}
	}
	return nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(ctx context.Context, w plug.Want) error {
	if w.Binding != plug.BindingTap {
		return p.Plugger.Check(ctx, w)
	}
	if err := w.Validate(); err != nil {
		return err
	}
	var found plug.Differences
	err := p.Plugger.Check(ctx, inner(w))
	if m, ok := errors.AsType[*plug.Mismatch](err); ok {
		found = m.Differences
	} else if err != nil {
		return err
	}
	pod, err := p.open(w.Pod)
	if err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	defer pod.Close()
	if err := check(pod, w, &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
}

// check adds differences of the tap device and its filters. The wrapped Plugger checks the port's
// link.
func check(pod *podif.Namespace, w plug.Want, found *plug.Differences) error {
	device, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return err
	}
	if device == nil || !isTap(device) || !mine(device, w.Ref) {
		found.Add("the pod lacks the port's tap device %s", w.Pod.IfName)
		return nil
	}
	checkTap(device, w, found)
	nic, err := pod.Link(portLink(w.Ref))
	if err != nil || nic == nil {
		return err
	}
	for _, pair := range [][2]netlink.Link{{nic, device}, {device, nic}} {
		ok, err := redirects(pod, pair[0], pair[1])
		if err != nil {
			return err
		}
		if !ok {
			found.Add("%s does not redirect frames to %s in the pod", pair[0].Attrs().Name, pair[1].Attrs().Name)
		}
	}
	return nil
}

var _ plug.Plugger = (*Plugger)(nil)
