// Package tap makes what the runtime of a virtual machine finds in a pod: a tap device that
// leads to the port, which another Plugger has put into the pod.
//
// The runtime opens the device by the name of the pod's interface, and gives the machine the
// port's MAC address; the machine has the port's addresses, and the pod's namespace none.
package tap

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/podif"
)

var _ = failpoint.Register("plug.tap.port.after", "plug.tap.made.after", "plug.tap.named.after", "plug.tap.joined.after",
	"plug.tap.removed.after")

// Plugger adds tap devices to what another one plugs, for those ports that are for machines.
type Plugger struct {
	plug.Plugger
	node  rtnl.NetnsID
	turns plug.Turns
}

// New wraps a Plugger in the calling thread's network namespace, the node's.
func New(inner plug.Plugger) (*Plugger, error) {
	node, err := rtnl.InspectNetns("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return &Plugger{Plugger: inner, node: node}, nil
}

// Names of a port's links in the pod, besides the tap device, whose name is the interface's.
func portLink(r plug.Ref) string   { return "nic" + r.Short() }
func bridgeLink(r plug.Ref) string { return "br" + r.Short() }
func unfinished(r plug.Ref) string { return "new" + r.Short() } // the tap device until it has its mark

// inner is what the wrapped Plugger is to plug: a bare link.
func inner(w plug.Want) plug.Want {
	w.Guest = nil
	w.Pod.IfName = portLink(w.Ref)
	w.Interface = plug.Interface{MAC: w.Interface.MAC, LinkMAC: derive(w.PortID), MTU: w.Interface.MTU}
	return w
}

// derive makes the MAC address of the port's link in the pod: a bridge keeps frames for the
// addresses of its links to itself, so it must not be the machine's.
func derive(portID string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("nic\x00" + portID))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

// tapMAC is the MAC address of the tap device. On a bridge it is the machine's with the first
// byte fe, as libvirt has it: higher than any other, so that the bridge does not take it.
func tapMAC(w plug.Want) net.HardwareAddr {
	mac := append(net.HardwareAddr{}, w.Interface.MAC...)
	if w.Guest.Mode == plug.GuestBridge {
		mac[0] = 0xfe
		if w.Interface.MAC[0] == 0xfe {
			mac[0] = 0xfa
		}
	}
	return mac
}

// Plug implements plug.Plugger.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	if w.Guest == nil {
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
	pod, err := podif.OpenPod(w.Pod, p.node)
	if err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	defer pod.Close()
	// Before the port is there, so that a name that is taken leaves nothing behind.
	if err := mayHave(pod, w); err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	done, err := p.Plugger.Plug(ctx, inner(w))
	if err == nil {
		err = failpoint.Hit("plug.tap.port.after")
	}
	if err != nil {
		return plug.Done{}, err
	}
	if err := lead(pod, w); err != nil {
		return plug.Done{}, fmt.Errorf("plug port %s as tap device %s: %w", w.PortID, w.Pod.IfName, err)
	}
	done.PodMAC, done.TapIfName = w.Interface.MAC, w.Pod.IfName
	return done, nil
}

// mayHave tells that the name of the tap device is free in the pod, or that of this port's.
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

// lead makes the tap device and what leads from it to the port's link.
func lead(pod *podif.Namespace, w plug.Want) error {
	nic, err := pod.NL.LinkByName(portLink(w.Ref))
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", portLink(w.Ref), pod.Path, err)
	}
	device, err := ensureTap(pod, w)
	if err != nil {
		return err
	}
	if err := silence(pod, nic.Attrs().Name, device.Attrs().Name); err != nil {
		return err
	}
	if w.Guest.Mode == plug.GuestBridge {
		err = bridge(pod, w, nic, device)
	} else {
		err = errors.Join(redirect(pod, nic, device), redirect(pod, device, nic))
	}
	if err == nil {
		err = failpoint.Hit("plug.tap.joined.after")
	}
	for _, l := range []netlink.Link{nic, device} {
		if err == nil {
			err = pod.NL.LinkSetUp(l)
		}
	}
	return err
}

// Await implements plug.Plugger.
func (p *Plugger) Await(ctx context.Context, w plug.Want) error {
	if w.Guest == nil {
		return p.Plugger.Await(ctx, w)
	}
	return p.Plugger.Await(ctx, inner(w))
}

// Unplug implements plug.Plugger.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	over, err := p.turns.Take(ctx, r.PortID)
	if err != nil {
		return err
	}
	defer over()
	pod, err := podif.OpenPod(r.Pod, p.node)
	if err == nil {
		err = removeGuest(pod, r)
		pod.Close()
		if err == nil {
			err = failpoint.Hit("plug.tap.removed.after")
		}
		if err != nil {
			return fmt.Errorf("unplug port %s: %w", r.PortID, err)
		}
	}
	return p.Plugger.Unplug(ctx, r) // tells what is wrong with the namespace, if that is an error
}

// removeGuest removes what lead made.
func removeGuest(pod *podif.Namespace, r plug.Ref) error {
	links, err := rtnl.Whole(pod.NL.LinkList)
	if err != nil {
		return fmt.Errorf("list links in %s: %w", pod.Path, err)
	}
	for _, l := range links {
		ours := mine(l, r) && (isTap(l) || l.Type() == "bridge")
		begun := l.Attrs().Alias == "" && (isTap(l) && l.Attrs().Name == unfinished(r) || l.Type() == "bridge" && l.Attrs().Name == bridgeLink(r))
		if !ours && !begun {
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
	if w.Guest == nil {
		return p.Plugger.Check(ctx, w)
	}
	var found plug.Differences
	err := p.Plugger.Check(ctx, inner(w))
	if m, ok := errors.AsType[*plug.Mismatch](err); ok {
		found = m.Differences
	} else if err != nil {
		return err
	}
	pod, err := podif.OpenPod(w.Pod, p.node)
	if err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	defer pod.Close()
	if err := checkGuest(pod, w, &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
}

func checkGuest(pod *podif.Namespace, w plug.Want, found *plug.Differences) error {
	device, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return err
	}
	if device == nil || !isTap(device) || !mine(device, w.Ref) {
		found.Add("the pod lacks the port's tap device %s", w.Pod.IfName)
		return nil
	}
	a := device.Attrs()
	if a.Flags&net.FlagUp == 0 {
		found.Add("%s is down in the pod", a.Name)
	}
	if want := tapMAC(w); a.HardwareAddr.String() != want.String() {
		found.Add("%s has MAC address %s in the pod, not %s", a.Name, a.HardwareAddr, want)
	}
	if w.Interface.MTU != 0 && a.MTU != w.Interface.MTU {
		found.Add("%s has MTU %d in the pod, not %d", a.Name, a.MTU, w.Interface.MTU)
	}
	nic, err := pod.Link(portLink(w.Ref))
	if err != nil || nic == nil { // which the wrapped Plugger told
		return err
	}
	if w.Guest.Mode == plug.GuestBridge {
		return checkBridge(pod, w, nic, device, found)
	}
	for _, pair := range [][2]netlink.Link{{nic, device}, {device, nic}} {
		ok, err := redirects(pod, pair[0], pair[1])
		if err != nil {
			return err
		}
		if !ok {
			found.Add("%s does not hand frames to %s in the pod", pair[0].Attrs().Name, pair[1].Attrs().Name)
		}
	}
	return nil
}

var _ plug.Plugger = (*Plugger)(nil)
