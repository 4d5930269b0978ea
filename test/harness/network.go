package harness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/echo"
)

// Asks asks an echo server from the network namespace at path for up to a minute, and compares the
// address that it sees. It uses another port every five seconds: the kernel treats packets of one port
// like the first one, whatever was repaired since.
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

// RateLimits counts the links of a namespace with a token bucket of a rate (bytes a second), by type.
func RateLimits(t *testing.T, netns string, rate uint64) map[string]int {
	t.Helper()
	found := map[string]int{}
	OK(t, ns.Do(netns, func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			qdiscs, listErr := netlink.QdiscList(link)
			if listErr != nil {
				err = errors.Join(err, fmt.Errorf("list the qdiscs of %s: %w", link.Attrs().Name, listErr))
			}
			for _, q := range qdiscs {
				if tbf, ok := q.(*netlink.Tbf); ok && tbf.Rate == rate {
					found[link.Type()]++
				}
			}
		}
		return err
	}))
	return found
}
