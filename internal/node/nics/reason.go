package nics

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
)

// The reasons of status.node, besides those of reasons.
const (
	reasonPlug   = "PlugFailed"
	reasonUnplug = "UnplugFailed"
	reasonMoved  = "AddressChanged"
)

// longestError is what of an error's text is told, in bytes, so that the remedy is too.
const longestError = 350

// reasons tell errors apart, with what a person can do.
var reasons = []struct {
	is             error
	reason, remedy string
}{
	{plug.ErrInvalid, "Invalid", "the PodNIC says what cannot be: see berth-operator's log and the port at its provider"},
	{plug.ErrInterfaceExists, "InterfaceExists", "remove that interface from the pod, or give the NIC another name"},
	{plug.ErrNameTaken, "LinkNameTaken", "remove what has the name, or the VLAN, on the node, or have another port made"},
	{plug.ErrPortInUse, "PortInUse", "it is plugged once the other attachment is gone"},
	{plug.ErrDefaultRoute, "DefaultRoute", "leave defaultRoute out, or make the pod anew"},
	{plug.ErrNoBridge, "NoBridge", "see that Open vSwitch on the node has the bridge (--ovs-bridges)"},
	{plug.ErrUnreachable, "OpenVSwitchUnreachable", "see that Open vSwitch runs on the node (--ovsdb)"},
	{plug.ErrNoTun, "NoTun", "load the kernel's module tun on the node, and see that berthd may open /dev/net/tun"},
	{plug.ErrNoVLAN, "NoVLAN", "load the kernel's module 8021q on the node"},
	{plug.ErrNotReady, "NotActive", "see that OVN's controller, or the provider's agent, runs on the node, or that its trunk is attached"},
}

// failureOf says why something could not be done, and what to do. Reason is that of an
// error that has none of its own.
func failureOf(err error, reason string) failure {
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			return failure{reason: r.reason, message: fmt.Sprintf("%s: %s; it is tried again", shown(err.Error(), longestError), r.remedy)}
		}
	}
	return failure{reason: reason, message: err.Error()}
}

// movedMessage says why an interface does not get the addresses of its port.
func movedMessage(has, port attachment.NIC) string {
	if ofMachine(has) {
		return fmt.Sprintf("port %s has %s with MAC address %s now, and %s of the running pod %s with %s: a virtual machine has it, and what it began with stays; give the port that back, or make the pod anew",
			port.Port, addressesOf(port), port.MAC, has.IfName, addressesOf(has), has.MAC)
	}
	return fmt.Sprintf("port %s has %s now, and %s of the running pod %s: it is the address by which Kubernetes knows the pod, and stays; give the port its address back, or make the pod anew",
		port.Port, addressesOf(port), has.IfName, addressesOf(has))
}

func addressesOf(n attachment.NIC) string {
	var list []string
	for _, a := range n.Addresses {
		list = append(list, a.CIDR.String())
	}
	return strings.Join(list, " and ")
}
