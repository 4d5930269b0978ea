package datapath

import (
	"errors"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Errors that a caller tells apart with errors.Is.
var (
	// ErrNoNetns: the pod's network namespace does not exist (any more).
	ErrNoNetns = rtnl.ErrNoNetns
	// ErrNotNetns: something else is at the path of a network namespace.
	ErrNotNetns = rtnl.ErrNotNetns
	// ErrInterfaceExists: the pod's namespace has an interface of the wanted
	// name that Berth did not make for this attachment.
	ErrInterfaceExists = errors.New("interface exists already and is not Berth's")
	// ErrAddressInUse: the node has a pod route for the address to another link.
	ErrAddressInUse = errors.New("address is routed to another pod link")
	// ErrNoLink: no link has the ENI's MAC address (yet).
	ErrNoLink = errors.New("no link with this MAC address")
	// ErrNotSetUp: Setup has not succeeded on this Node.
	ErrNotSetUp = errors.New("node data path is not set up")
	// ErrClosed: the Node was closed.
	ErrClosed = errors.New("data path is closed")
)
