// Package forward carries TCP connections between networks that do not reach each
// other, such as namespaces of a lab and the machine around them.
package forward

import (
	"context"
	"io"
	"net"
)

// Forward carries the connections of one listener.
type Forward struct {
	net.Listener
	end context.CancelFunc // of the connections
}

// Start carries each connection to l to one of its own that dial makes. A connection for
// which dial fails is closed.
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

// carry carries one connection until either side or ctx ends it.
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

// Close ends the connections too.
func (f *Forward) Close() error {
	f.end()
	return f.Listener.Close()
}
