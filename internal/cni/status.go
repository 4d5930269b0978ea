package cni

import (
	"context"

	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/rpc/wire"
)

// callStatus is nil when the node takes pods, or took them less than a minute
// ago and its daemon does not answer: a STATUS that failed while berthd is
// restarted would get the node's pods evicted.
func (n network) callStatus() error {
	within := min(statusTimeout, n.timeout())
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := n.dial(ctx)
	if err != nil {
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.unreachable(err))
	}
	_, err = unary.Call(ctx, conn, service+"Status", wire.StatusRequest{Network: n.Name}.Encode())
	switch unary.CodeOf(err) {
	case unary.OK:
		return nil
	case unary.Unavailable, unary.DeadlineExceeded:
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.failed(err, within))
	}
	return n.failed(err, within)
}
