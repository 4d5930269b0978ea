package harness

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpclab/echo"
)

// Asks asks an echo server once from the network namespace at path, and compares
// the source that arrived there.
func Asks(t *testing.T, path string, to, want netip.Addr) error {
	t.Helper()
	r, err := echo.Ask(Deadline(t, time.Minute), path, "udp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "hello")
	if err == nil && r.You != want {
		err = fmt.Errorf("seen as %s, want %s", r.You, want)
	}
	if err != nil {
		return fmt.Errorf("to %s: %w", to, err)
	}
	return nil
}
