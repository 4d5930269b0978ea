package harness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/network/echo"
)

// Asks asks an echo server from the network namespace at path until it answers,
// for a minute at the most, and compares the source that arrived there. It asks
// from another port every five seconds: the kernel treats what goes on from one as
// it treated the first packet, whatever was repaired since.
func Asks(t *testing.T, path string, to, want netip.Addr) error {
	t.Helper()
	return AsksBy(t, path, "udp", netip.AddrPortFrom(to, echo.Port), want)
}

// AsksBy is Asks for another network or port.
func AsksBy(t *testing.T, path, network string, to netip.AddrPort, want netip.Addr) error {
	t.Helper()
	var r echo.Reply
	var err error
	for limit := Deadline(t, time.Minute); limit.Err() == nil; {
		try, cancel := context.WithTimeout(limit, 5*time.Second)
		r, err = echo.Ask(try, path, network, to, netip.Addr{}, "hello")
		cancel()
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	if err == nil && r.You != want {
		err = fmt.Errorf("seen as %s, want %s", r.You, want)
	}
	if err != nil {
		return fmt.Errorf("to %s: %w", to, err)
	}
	return nil
}
