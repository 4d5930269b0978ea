package daemon

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/berthnet/berth/internal/listener"
)

// The plugin's listener closes a connection for a new one when it has as many as
// it may. It is told which have a call at work, so that it closes others.

// knownConns are credentials that prove nothing, and tell a call by which of the
// listener's connections it came.
type knownConns struct {
	credentials.TransportCredentials
}

func newKnownConns() credentials.TransportCredentials { return knownConns{insecure.NewCredentials()} }

// ServerHandshake implements credentials.TransportCredentials.
func (k knownConns) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	same, info, err := k.TransportCredentials.ServerHandshake(c)
	if limited, ok := c.(*listener.Conn); ok && err == nil {
		return same, &knownConn{AuthInfo: info, conn: limited}, nil
	}
	return same, info, err
}

type knownConn struct {
	credentials.AuthInfo
	conn *listener.Conn

	mu    sync.Mutex // guards calls
	calls int        // at work
}

// atWork keeps the connection of a call, whose message has come, from giving way
// to others until end is called.
func atWork(ctx context.Context) (end func()) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return func() {}
	}
	k, ok := p.AuthInfo.(*knownConn)
	if !ok {
		return func() {}
	}
	k.count(1)
	return func() { k.count(-1) }
}

func (k *knownConn) count(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls += n
	k.conn.Working(k.calls > 0)
}
