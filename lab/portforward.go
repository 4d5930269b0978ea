package lab

import (
	"context"
	"net"
	"net/netip"

	"github.com/berthnet/berth/lab/network/forward"
	"github.com/berthnet/berth/lab/network/ns"
)

// forwardPort lets programs outside the lab, such as a person's kubectl, reach a
// port inside one of its namespaces. It listens on a loopback port of the system's choice.
func forwardPort(path string, to netip.AddrPort) (*forward.Forward, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return forward.Start(l, func(ctx context.Context) (net.Conn, error) {
		return ns.Dial(ctx, path, "tcp", to, netip.Addr{})
	}), nil
}
