package daemon

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/berthnet/berth/internal/listener"
)

// What waits on the plugin's socket takes up one of its connections. These bounds
// leave some for calls that are done at once, such as a DEL and a STATUS.

const (
	// maxWaiting is how many ADDs wait at a time, for an address, for another call
	// about their container, or for the daemon to start. The kubelet tries those
	// again that are refused.
	maxWaiting = pluginConnections * 3 / 4
	// crowdedWait is how long an ADD beyond them may take until it asks for an
	// address, which it gets then if there is one.
	crowdedWait = 100 * time.Millisecond
)

// crowd counts the ADDs that are at work.
type crowd struct{ adds atomic.Int64 }

// errCrowded refuses an ADD that would wait beside too many others.
var errCrowded = failf(types.ErrTryAgainLater, "crowded", "%d ADDs wait already on this node; try again", maxWaiting)

// enter returns the context in which an ADD may wait. leave must be called once.
func (c *crowd) enter(ctx context.Context) (_ context.Context, leave func()) {
	if c.adds.Add(1) <= maxWaiting {
		return ctx, func() { c.adds.Add(-1) }
	}
	ctx, cancel := context.WithTimeoutCause(ctx, crowdedWait, errCrowded)
	return ctx, func() {
		c.adds.Add(-1)
		cancel()
	}
}

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
