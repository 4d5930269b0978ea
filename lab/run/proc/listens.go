package proc

import (
	"context"
	"net"
)

// Listens is an error where nobody listens at a Unix socket.
func Listens(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
