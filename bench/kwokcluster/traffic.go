package kwokcluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// requests are the requests that the API server has handled.
type requests struct{ all, berth float64 }

// requests reads the API server's counter.
func (c *cluster) requests(ctx context.Context) (r requests, err error) {
	cfg := c.lab.Kube.Config()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return r, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/metrics", nil)
	if err != nil {
		return r, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return r, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return r, fmt.Errorf("read the API server's metrics: status %s, expected 200", resp.Status)
	}
	return countRequests(resp.Body)
}

// countRequests sums the counter over its labels.
func countRequests(metrics io.Reader) (r requests, err error) {
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "apiserver_request_total{")
		if !ok {
			continue
		}
		at := strings.LastIndexByte(labels, ' ')
		n, err := strconv.ParseFloat(labels[at+1:], 64)
		if err != nil {
			return r, fmt.Errorf("the API server's counter of requests: %w", err)
		}
		r.all += n
		if strings.Contains(labels, `group="berth.dev"`) {
			r.berth += n
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("the API server's metrics: %w", err)
	}
	if r.all == 0 {
		return r, fmt.Errorf("the API server's metrics count no requests")
	}
	return r, nil
}

// received returns the bytes that each connection of a machine to the API server has received (tcp(7), TCP_INFO), by local
// port: TLS records, without the headers of TCP and IP.
func (c *cluster) received(netns string) (by map[uint16]uint64, err error) {
	api := c.lab.Kube.Endpoint()
	by = map[uint16]uint64{}
	err = ns.Do(netns, func() error {
		all, err := netlink.SocketDiagTCPInfo(unix.AF_INET)
		for _, s := range all {
			id := s.InetDiagMsg.ID
			if s.TCPInfo != nil && id.DestinationPort == api.Port() && id.Destination.Equal(api.Addr().AsSlice()) {
				by[id.SourcePort] = s.TCPInfo.Bytes_received
			}
		}
		return err
	})
	if err == nil && len(by) == 0 {
		err = fmt.Errorf("no connection to the API server at %s", api)
	}
	return by, err
}
