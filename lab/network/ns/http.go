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

// Get fetches a URL from inside the namespace at path. The URL's host is a
// literal address. A status other than 200 is an error; the body is returned
// in either case.
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
