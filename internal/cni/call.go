package cni

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/heartbeat"
	"github.com/berthnet/berth/internal/rpc/unary"
)

const (
	service = "/berth.v1.Node/"

	// statusTimeout bounds a STATUS, which asks for nothing but memory.
	statusTimeout = 5 * time.Second
	// restartWait is how long a call waits for the socket of a daemon that is
	// being restarted, which takes less than a failed pod sandbox does.
	restartWait  = 5 * time.Second
	dialInterval = 20 * time.Millisecond
)

// call makes one call to the daemon and returns its answer. The error, if any,
// is a *types.Error.
func (n network) call(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	conn, err := n.connect(ctx)
	if err != nil {
		return nil, n.unreachable(err)
	}
	reply, err := unary.Call(ctx, conn, service+verb, message)
	if err != nil {
		return nil, n.failed(err, n.timeout())
	}
	return reply, nil
}

// connect dials the daemon, and tries again for a while when nobody listens
// although someone did a moment ago. Nothing has been asked yet.
func (n network) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		conn, err := n.dial(ctx)
		if err == nil || !nobodyListens(err) || !n.restarting() {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialInterval):
		}
	}
}

func (n network) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", n.Socket)
}

func (n network) restarting() bool { return heartbeat.Recent(n.Socket, clock.Real{}.Boot()) }

// nobodyListens tells whether a dial failed for want of a daemon: no socket, a
// socket without a process, or one whose queue is full.
func nobodyListens(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}
