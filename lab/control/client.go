package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// ErrNotRunning says that no lab listens in the directory.
var ErrNotRunning = errors.New("no lab is running")

// Client steers the lab in a directory.
type Client struct {
	dir  string
	http http.Client
}

// Dial makes a client; nothing is sent yet.
func Dial(dir string) *Client {
	c := &Client{dir: dir}
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", SocketPath(dir))
		},
	}
	return c
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w in %s: start one with vpclab up", ErrNotRunning, c.dir)
	}
	if err != nil {
		return fmt.Errorf("ask the lab in %s: %w", c.dir, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var f failure
		if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || f.Error == "" {
			return fmt.Errorf("the lab answered %s", resp.Status)
		}
		return errors.New(f.Error)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// Status looks at the lab.
func (c *Client) Status(ctx context.Context) (s lab.Status, err error) {
	err = c.get(ctx, "/v1/status", &s)
	return s, err
}

func (c *Client) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, out)
}

// Target finds where a command for "node", "node/pod", "internet", "onprem" or
// "vpc" runs.
func (c *Client) Target(ctx context.Context, name string) (t Target, err error) {
	err = c.get(ctx, "/v1/target?name="+url.QueryEscape(name), &t)
	return t, err
}

// AddPod makes a pod.
func (c *Client) AddPod(ctx context.Context, r PodRequest) (p PodReply, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/pods", r, &p)
	return p, err
}

// DelPod removes a pod.
func (c *Client) DelPod(ctx context.Context, node, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/pods/"+url.PathEscape(node)+"/"+url.PathEscape(name), nil, nil)
}

// Kill kills a program, and starts it again if asked to: a node's berthd by the node's name, an operator or the API
// server by its own. It returns a description of the program.
func (c *Client) Kill(ctx context.Context, name string, restart bool) (what string, err error) {
	err = c.call(ctx, http.MethodPost, fmt.Sprintf("/v1/programs/%s/kill?restart=%t", url.PathEscape(name), restart), nil, &what)
	return what, err
}

// Start starts a program, named as for Kill, and returns when it is ready.
func (c *Client) Start(ctx context.Context, name string) (what string, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/programs/"+url.PathEscape(name)+"/start", nil, &what)
	return what, err
}

// Calls returns the EC2 calls in the lab's log that came after the one that is
// numbered after, oldest first.
func (c *Client) Calls(ctx context.Context, after uint64) (list []vpc.CallRecord, err error) {
	err = c.get(ctx, fmt.Sprintf("/v1/calls?after=%d", after), &list)
	return list, err
}

// Faults describes the faults in force.
func (c *Client) Faults(ctx context.Context) (list []string, err error) {
	err = c.get(ctx, "/v1/faults", &list)
	return list, err
}

// AddFault injects a fault into the cloud, in place of one of the same kind and action.
func (c *Client) AddFault(ctx context.Context, r FaultRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/faults", r, nil)
}

// ClearFaults ends the faults of a kind, all when it is empty, and counts them.
func (c *Client) ClearFaults(ctx context.Context, kind string) (n int, err error) {
	err = c.call(ctx, http.MethodDelete, "/v1/faults?kind="+url.QueryEscape(kind), nil, &n)
	return n, err
}

// end asks the lab to remove itself.
func (c *Client) end(ctx context.Context) (r DownReply, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/down", nil, &r)
	return r, err
}
