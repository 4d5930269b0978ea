package echo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Ask sends text from the namespace at path to the server at remote over network ("tcp" or "udp") and returns the
// reply. If local is zero, the kernel chooses the source.
func Ask(ctx context.Context, path, network string, remote netip.AddrPort, local netip.Addr, text string) (Reply, error) {
	c, err := Connect(ctx, path, network, remote, local)
	if err != nil {
		return Reply{}, err
	}
	defer c.Close()
	return c.Ask(ctx, text)
}

// Conn is a conversation with a server.
type Conn struct {
	net.Conn
	network string
	in      *bufio.Reader
}

// Connect starts a conversation.
func Connect(ctx context.Context, path, network string, remote netip.AddrPort, local netip.Addr) (*Conn, error) {
	c, err := ns.Dial(ctx, path, network, remote, local)
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // avoids a TIME-WAIT that outlives the lab's namespaces
	}
	return &Conn{Conn: c, network: network, in: bufio.NewReaderSize(c, 64<<10)}, nil
}

// Ask sends one message and waits for the reply until ctx ends. Over UDP it repeats the message every 300 ms.
func (c *Conn) Ask(ctx context.Context, text string) (Reply, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Minute)
	}
	if c.network != "udp" {
		return c.once(text+"\n", deadline, c.readLine)
	}
	for {
		try := time.Now().Add(300 * time.Millisecond)
		if try.After(deadline) {
			try = deadline
		}
		r, err := c.once(text, try, c.readDatagram)
		if err == nil || !time.Now().Before(deadline) || ctx.Err() != nil {
			return r, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return r, err
		}
	}
}

// Once sends one message without repetition, even over UDP, and waits for the reply up to a timeout.
func (c *Conn) Once(text string, wait time.Duration) (Reply, error) {
	if c.network == "udp" {
		return c.once(text, time.Now().Add(wait), c.readDatagram)
	}
	return c.once(text+"\n", time.Now().Add(wait), c.readLine)
}

func (c *Conn) once(text string, deadline time.Time, read func() (string, error)) (Reply, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return Reply{}, err
	}
	if _, err := fmt.Fprint(c.Conn, text); err != nil {
		return Reply{}, err
	}
	s, err := read()
	if err != nil {
		return Reply{}, err
	}
	return Parse(s)
}

func (c *Conn) readLine() (string, error) { return c.in.ReadString('\n') }

func (c *Conn) readDatagram() (string, error) {
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
