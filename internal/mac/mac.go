// Package mac defines MAC addresses that are text in JSON.
package mac

import (
	"fmt"
	"net"
)

// Addr is a hardware address , "02:00:00:00:00:01" in JSON.
type Addr net.HardwareAddr

// String returns a text such as "02:00:00:00:00:01".
func (a Addr) String() string { return net.HardwareAddr(a).String() }

// MarshalText implements encoding.TextMarshaler.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Addr) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = nil
		return nil
	}
	hw, err := net.ParseMAC(string(text))
	if err != nil {
		return fmt.Errorf("mac: %w", err)
	}
	*a = Addr(hw)
	return nil
}
