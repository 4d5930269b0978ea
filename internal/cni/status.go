package cni

import (
	"context"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/rpc/wire"
)

// callStatus is nil when the node takes pods, or took them less than a minute
// ago and its daemon does not answer: a STATUS that failed while berthd is
// restarted would get the node's pods evicted.
func (n network) callStatus() error {
	ctx, cancel := context.WithTimeout(context.Background(), min(statusTimeout, n.timeout()))
	defer cancel()
	conn, err := n.dial(ctx)
	if err != nil {
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.unreachable(err))
	}
	err = unary.Call(ctx, conn, service+"Status", &wire.StatusRequest{Network: n.Name}, &wire.StatusReply{})
	switch grpcstatus.Code(err) {
	case codes.OK:
		return nil
	case codes.Unavailable, codes.DeadlineExceeded:
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.failed(err))
	}
	return n.failed(err)
}
