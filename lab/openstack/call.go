package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// call is one request.
type call struct {
	method, url string
	body        any
	token       string // empty: none
}

// Transport returns a transport that reaches the services from any network namespace.
func (o Options) Transport() *http.Transport {
	t := &http.Transport{DisableKeepAlives: true}
	if o.Netns != "" {
		t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			remote, err := netip.ParseAddrPort(addr)
			if err != nil {
				return nil, fmt.Errorf("%s: expected a literal address: %w", addr, err)
			}
			return ns.Dial(ctx, o.Netns, network, remote, netip.Addr{})
		}
	}
	return t
}

// do sends a request and decodes the response into out, unless that is nil. The error of a failed request
// contains the service's response.
func (o Options) do(ctx context.Context, r call, out any) (http.Header, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.method, r.url, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		req.Header.Set("X-Auth-Token", r.token)
	}
	resp, err := o.Transport().RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.url, err)
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.url, resp.Status, bytes.TrimSpace(text))
	}
	if out == nil {
		return resp.Header, nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("%s %s: %w in %q", r.method, r.url, err, text)
	}
	return resp.Header, nil
}

// network sends a request to Neutron's API below /v2.0, as its administrator.
func (c *Cloud) network(ctx context.Context, method, path string, body, out any) error {
	token := ""
	if c.keystone != nil {
		var err error
		if token, err = c.keystone.adminToken(ctx); err != nil {
			return err
		}
	}
	_, err := c.do(ctx, call{method: method, url: neutronURL() + "/v2.0/" + path, body: body, token: token}, out)
	return err
}
