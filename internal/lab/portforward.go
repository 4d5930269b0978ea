package lab

import (
	"context"
	"io"
	"net"
	"net/netip"

	"github.com/berthnet/berth/internal/lab/network/ns"
)

// portForward lets programs outside the lab, such as a person's kubectl, reach a
// port inside one of its namespaces.
type portForward struct {
	net.Listener
	end context.CancelFunc // of the connections
}

// forwardPort listens on a loopback port of the system's choice.
func forwardPort(path string, to netip.AddrPort) (*portForward, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		for {
			outside, err := l.Accept()
			if err != nil {
				return
			}
			go forward(ctx, outside, path, to)
		}
	}()
	return &portForward{l, end}, nil
}

// forward carries one connection until either side or ctx ends it.
func forward(ctx context.Context, outside net.Conn, path string, to netip.AddrPort) {
	defer outside.Close()
	inside, err := ns.Dial(ctx, path, "tcp", to, netip.Addr{})
	if err != nil {
		return
	}
	defer inside.Close()
	unwatch := context.AfterFunc(ctx, func() { _ = outside.Close() })
	defer unwatch()
	go func() {
		_, _ = io.Copy(inside, outside)
		_ = inside.Close()
	}()
	_, _ = io.Copy(outside, inside)
}

// Close ends the connections too.
func (f *portForward) Close() error {
	f.end()
	return f.Listener.Close()
}
