package cni

import (
	"context"
	"net"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc/unary"
)

const (
	service = "/berth.v1.Node/"

	// statusTimeout bounds a STATUS, which asks for nothing but memory.
	statusTimeout = 5 * time.Second
)

// call makes a call to the daemon, again if it is being restarted, and returns
// its answer. The error, if any, is a *types.Error.
func (n network) call(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	reply, err := repeated(ctx, clock.Real{}, n.restarting, func(ctx context.Context) ([]byte, error) {
		return n.attempt(ctx, verb, message)
	})
	return n.outcome(reply, err)
}

// callOnce makes a call that must not be made again.
func (n network) callOnce(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	return n.outcome(n.attempt(ctx, verb, message))
}

// attempt dials the daemon and asks it. The error is the dial's, or a *unary.Error.
func (n network) attempt(ctx context.Context, verb string, message []byte) ([]byte, error) {
	conn, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	return unary.Call(ctx, conn, service+verb, message)
}

// outcome is a call's for the runtime.
func (n network) outcome(reply []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, n.failed(err, n.timeout())
	}
	return reply, nil
}

func (n network) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", n.Socket)
}

func (n network) restarting() bool { return heartbeat.Recent(n.Socket, clock.Real{}.Boot()) }
