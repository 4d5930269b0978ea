package harness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
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

// RateLimits returns the names of the links of a namespace with a token bucket of a rate (bytes a second), by type.
func RateLimits(t *testing.T, netns string, rate uint64) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	OK(t, ns.Do(netns, func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			qdiscs, listErr := netlink.QdiscList(link)
			if listErr != nil {
				err = errors.Join(err, fmt.Errorf("list the qdiscs of %s: %w", link.Attrs().Name, listErr))
			}
			for _, q := range qdiscs {
				if tbf, ok := q.(*netlink.Tbf); ok && tbf.Rate == rate {
					found[link.Type()] = append(found[link.Type()], link.Attrs().Name)
				}
			}
		}
		return err
	}))
	return found
}

// Conversations are questions to echo servers over a connection each, until End.
type Conversations struct {
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex // guards all below
	replies int
	errs    []error // one for each conversation that broke
}

// Converse asks a question over each connection every pace, until the test ends or End is called. A reply
// must come within a time, and the server must always see the same address.
func Converse(t *testing.T, pace, within time.Duration, conns ...*echo.Conn) *Conversations {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &Conversations{cancel: cancel}
	t.Cleanup(func() { _ = c.End() })
	for _, conn := range conns {
		c.work.Go(func() {
			defer conn.Close()
			var seen netip.Addr
			for i := 0; ctx.Err() == nil; i++ {
				text := fmt.Sprintf("question %d", i)
				r, err := conn.Once(text, within)
				if err == nil && (r.Text != text || seen.IsValid() && r.You != seen) {
					err = fmt.Errorf("the reply is %v, before %s was seen", r, seen)
				}
				if !c.note(err, fmt.Sprintf("%s to %s, %s", conn.LocalAddr(), conn.RemoteAddr(), text)) {
					return
				}
				seen = r.You
				select {
				case <-ctx.Done():
				case <-time.After(pace):
				}
			}
		})
	}
	return c
}

// note records a reply or an error, and returns whether it was a reply.
func (c *Conversations) note(err error, what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
		return false
	}
	c.replies++
	return true
}

func (c *Conversations) state() (replies int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replies, errors.Join(c.errs...)
}

// GoOn waits for a number of further replies.
func (c *Conversations) GoOn(t *testing.T, more int) {
	t.Helper()
	before, _ := c.state()
	Eventually(t, Patience, fmt.Sprintf("%d further replies", more), func() error {
		replies, err := c.state()
		if err != nil {
			t.Fatalf("after %d replies: %v", replies, err)
		}
		if replies < before+more {
			return fmt.Errorf("%d", replies-before)
		}
		return nil
	})
}

// End ends the conversations. The error is about those that broke.
func (c *Conversations) End() error {
	c.cancel()
	c.work.Wait()
	_, err := c.state()
	return err
}
