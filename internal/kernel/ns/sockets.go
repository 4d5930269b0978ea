package ns

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
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

// Dial connects from the namespace at path. It takes no host name, because Go resolves names on threads in other
// namespaces. With a zero local address, the kernel chooses the source.
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

// Get fetches a URL from inside the namespace at path. The URL's host must be a literal address. A status other than
// 200 is an error; the body is returned in both cases.
func Get(ctx context.Context, path, url string) (string, error) {
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			remote, err := netip.ParseAddrPort(addr)
			if err != nil {
				return nil, fmt.Errorf("%s: want a literal address: %w", addr, err)
			}
			return Dial(ctx, path, network, remote, netip.Addr{})
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}
