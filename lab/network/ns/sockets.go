package ns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Listen opens a TCP listener in the namespace at path.
func Listen(path string, addr netip.AddrPort) (net.Listener, error) {
	var l net.Listener
	err := Do(path, func() (err error) {
		l, err = net.Listen("tcp", addr.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", addr, path, err)
	}
	return l, nil
}

// ListenPacket opens a UDP socket in the namespace at path.
func ListenPacket(path string, addr netip.AddrPort) (*net.UDPConn, error) {
	var c *net.UDPConn
	err := Do(path, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s/udp in %s: %w", addr, path, err)
	}
	return c, nil
}

// Dial connects from the namespace at path. The address must be literal: names
// are resolved on other threads, which are elsewhere. A zero local address
// leaves the choice to the kernel.
func Dial(ctx context.Context, path, network string, remote netip.AddrPort, local netip.Addr) (net.Conn, error) {
	var d net.Dialer
	if local.IsValid() {
		switch network {
		case "udp":
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
		default:
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
		}
	}
	var c net.Conn
	err := Do(path, func() (err error) {
		c, err = d.DialContext(ctx, network, remote.String())
		return err
	})
	return c, err
}
