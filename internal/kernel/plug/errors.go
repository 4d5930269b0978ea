package plug

import (
	"errors"
	"fmt"
	"strings"
)

// Errors to be tested with errors.Is.
var (
	// ErrInvalid: a Want or Ref is invalid. The message names the field and what is expected.
	ErrInvalid = errors.New("invalid port")
	// ErrInterfaceExists: the pod has an interface of this name that does not belong to the port.
	ErrInterfaceExists = errors.New("interface exists already and belongs to another port or program")
	// ErrNameTaken: a link name on the node, which contains the first 11 characters of the port ID,
	// or a VLAN of a trunk belongs to another port or to other software.
	ErrNameTaken = errors.New("name or VLAN is taken on the node")
	// ErrPortInUse: the port is plugged for another attachment on this node.
	ErrPortInUse = errors.New("port is plugged for another attachment")
	// ErrNoBridge: Open vSwitch has no such integration bridge (yet).
	ErrNoBridge = errors.New("no such bridge in Open vSwitch")
	// ErrUnreachable: OVSDB does not answer.
	ErrUnreachable = errors.New("OVSDB does not answer")
	// ErrNotReady: the provider's agent on the node did not finish in time.
	ErrNotReady = errors.New("not ready in time")
	// ErrNoTun: /dev/net/tun is missing or cannot be opened.
	ErrNoTun = errors.New("cannot create a tap device")
	// ErrNoVLAN: the kernel of the node does not support VLANs.
	ErrNoVLAN = errors.New("cannot create a VLAN")
	// ErrDefaultRoute: another interface of the pod has the default route that this one should
	// have.
	ErrDefaultRoute = errors.New("another interface has the pod's default route")
)

// Mismatch lists the differences between a port and its desired state.
type Mismatch struct {
	PortID      string
	Differences []string // at least one
}

// Error lists all differences.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("port %s: %s", m.PortID, strings.Join(m.Differences, "; "))
}

// Plugged names the port in an error of Plug.
func (w Want) Plugged(d Done, err error) (Done, error) {
	if err != nil {
		return Done{}, fmt.Errorf("plug port %s as %s: %w", w.PortID, w.Pod.IfName, err)
	}
	return d, nil
}

// Unplugged names the port in an error of Unplug.
func (r Ref) Unplugged(err error) error {
	if err != nil {
		return fmt.Errorf("unplug port %s: %w", r.PortID, err)
	}
	return nil
}

// Checked returns the result of Check: a Mismatch with the differences that a check finds, or an error that names the
// port.
func (w Want) Checked(check func(w Want, found *Differences) error) error {
	var found Differences
	if err := check(w, &found); err != nil {
		return fmt.Errorf("check port %s: %w", w.PortID, err)
	}
	return found.Of(w.PortID)
}

// Differences collects the differences of a port for a Mismatch.
type Differences []string

// Add adds one difference.
func (d *Differences) Add(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

// Of returns a Mismatch of the port, or nil if there are no differences.
func (d Differences) Of(portID string) error {
	if len(d) == 0 {
		return nil
	}
	return &Mismatch{PortID: portID, Differences: d}
}
