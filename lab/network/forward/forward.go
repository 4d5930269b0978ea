// Package forward forwards TCP connections between networks that cannot reach each other, such as namespaces of a lab and
// the machine's own.
package forward

import (
	"context"
	"io"
	"net"
)

// Forward forwards the connections of one listener.
type Forward struct {
	net.Listener
	end context.CancelFunc // of the connections
}

// Start forwards each connection to l over a new connection from dial. If dial fails, the connection is closed.
func Start(l net.Listener, dial func(context.Context) (net.Conn, error)) *Forward {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go carry(ctx, from, dial)
		}
	}()
	return &Forward{l, end}
}

// carry forwards one connection until either side or ctx ends it.
func carry(ctx context.Context, from net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer from.Close()
	to, err := dial(ctx)
	if err != nil {
		return
	}
	defer to.Close()
	unwatch := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer unwatch()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// Close also closes the connections.
func (f *Forward) Close() error {
	f.end()
	return f.Listener.Close()
}
