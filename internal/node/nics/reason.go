package nics

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
)

// The reasons of status.node for errors that are not in reasons.
const (
	reasonPlug   = "PlugFailed"
	reasonUnplug = "UnplugFailed"
	reasonMoved  = "AddressChanged"
)

// longestError bounds the text of an error, in bytes, to leave room for the remedy.
const longestError = 350

// reasons has for each error the reason of status.node, the label of the metric, and the remedy.
var reasons = []struct {
	is                    error
	reason, label, remedy string
}{
	{plug.ErrInvalid, "Invalid", "invalid", "the PodNIC is invalid: see berth-operator's log and the port at its provider"},
	{plug.ErrInterfaceExists, "InterfaceExists", "taken", "remove that interface from the pod, or give the NIC another name"},
	{plug.ErrNameTaken, "LinkNameTaken", "taken", "remove the link with that name, or VLAN, from the node, or have another port created"},
	{plug.ErrPortInUse, "PortInUse", "taken", "it will be plugged once the other attachment is gone"},
	{plug.ErrDefaultRoute, "DefaultRoute", "taken", "remove defaultRoute, or recreate the pod"},
	{plug.ErrNoBridge, "NoBridge", "ovsdb", "see that Open vSwitch on the node has the bridge (--ovs-bridges)"},
	{plug.ErrUnreachable, "OpenVSwitchUnreachable", "ovsdb", "see that Open vSwitch runs on the node (--ovsdb)"},
	{plug.ErrNoTun, "NoTun", "no-tun", "load the kernel module tun on the node, and see that berthd may open /dev/net/tun"},
	{plug.ErrNoVLAN, "NoVLAN", "no-vlan", "load the kernel module 8021q on the node"},
	{plug.ErrNotReady, "NotActive", "not-ready", "see that OVN's controller, or the provider's agent, runs on the node, or that its trunk is attached"},
}

// failureOf describes an error and its remedy. reason is that of errors without a reason of their own.
func failureOf(err error, reason string) failure {
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			return failure{reason: r.reason, message: fmt.Sprintf("%s: %s; it is retried", shown(err.Error(), longestError), r.remedy)}
		}
	}
	return failure{reason: reason, message: err.Error()}
}

// labelOf returns the label of the metric for an error.
func labelOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			return r.label
		}
	}
	return "other"
}

// movedMessage says why an interface does not get the new addresses of its port.
func movedMessage(has, port attachment.NIC) string {
	if ofMachine(has) {
		return fmt.Sprintf("port %s has %s with MAC address %s now, and %s of the running pod %s with %s: a virtual machine keeps what it started with; restore the port, or recreate the pod",
			port.Port, addressesOf(port), port.MAC, has.IfName, addressesOf(has), has.MAC)
	}
	return fmt.Sprintf("port %s has %s now, and %s of the running pod %s: Kubernetes knows the pod by that address, so it stays; restore the port's address, or recreate the pod",
		port.Port, addressesOf(port), has.IfName, addressesOf(has))
}

func addressesOf(n attachment.NIC) string {
	var list []string
	for _, a := range n.Addresses {
		list = append(list, a.CIDR.String())
	}
	return strings.Join(list, " and ")
}
