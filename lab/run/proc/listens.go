package proc

import (
	"context"
	"net"
)

// Listens returns an error unless a program listens at a Unix socket.
func Listens(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
