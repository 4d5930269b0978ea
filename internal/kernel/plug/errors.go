package plug

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that a caller tells apart with errors.Is.
var (
	// ErrInvalid: a Want or Ref cannot be; the text names the field and what is expected.
	ErrInvalid = errors.New("cannot be plugged")
	// ErrInterfaceExists: the pod has an interface of the wanted name that is not this port's.
	ErrInterfaceExists = errors.New("interface exists already and is not this port's")
	// ErrNameTaken: a link name on the node, which follows from the first 11 characters of the
	// port ID, or a VLAN of a trunk is another port's, or not Berth's.
	ErrNameTaken = errors.New("taken on the node")
	// ErrPortInUse: the port is plugged for another attachment of this node.
	ErrPortInUse = errors.New("port is plugged for another attachment")
	// ErrNoBridge: Open vSwitch does not have the integration bridge (yet).
	ErrNoBridge = errors.New("no such bridge in Open vSwitch")
	// ErrUnreachable: OVSDB does not answer.
	ErrUnreachable = errors.New("OVSDB does not answer")
	// ErrNotReady: what the provider's part of the node has to do was not done in time.
	ErrNotReady = errors.New("not ready in time")
	// ErrNoTun: the node has no /dev/net/tun, or none that may be opened.
	ErrNoTun = errors.New("no tap device can be made")
	// ErrNoVLAN: the node's kernel has no VLANs.
	ErrNoVLAN = errors.New("no VLAN can be made")
	// ErrDefaultRoute: another interface of the pod has the default route that this one is to have.
	ErrDefaultRoute = errors.New("another interface has the pod's default route")
)

// Mismatch tells how a port differs from what is wanted.
type Mismatch struct {
	PortID      string
	Differences []string // one a missing or wrong thing, at least one
}

// Error names every difference.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("port %s: %s", m.PortID, strings.Join(m.Differences, "; "))
}

// Differences collects what a Mismatch is made of.
type Differences []string

// Add notes one difference.
func (d *Differences) Add(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

// Of is the outcome of a check of a port: nil if nothing differs.
func (d Differences) Of(portID string) error {
	if len(d) == 0 {
		return nil
	}
	return &Mismatch{PortID: portID, Differences: d}
}
