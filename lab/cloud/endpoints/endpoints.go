// Package endpoints serves a virtual cloud in the calling process, each service on a loopback port: the EC2 API, the
// instance metadata service, and what gives roles to pods. Several clouds can run at the same time.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/berthnet/berth/lab/cloud/ec2api"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/imds"
	"github.com/berthnet/berth/lab/cloud/podroles"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// anyPort lets the system choose a loopback port.
const anyPort = "127.0.0.1:0"

// Cloud is a virtual cloud with its endpoints.
type Cloud struct {
	*vpc.Cloud
	EC2URL string // the endpoint URL of the EC2 API

	mu      sync.Mutex // guards all below
	closed  bool
	servers []*http.Server
	imds    map[string]string // metadata URLs by instance ID
}

// StaticKey is a credential that does not expire.
type StaticKey struct {
	AccessKeyID     string
	SecretAccessKey string
}

// Serve creates the cloud of a spec and serves its EC2 API on a free loopback port. The caller must close
// it.
func Serve(s spec.Spec, opts ...vpc.Option) (*Cloud, error) { return ServeOn(anyPort, s, opts...) }

// ServeOn is like Serve with a given address for the EC2 API.
func ServeOn(ec2Addr string, s spec.Spec, opts ...vpc.Option) (*Cloud, error) {
	cloud, err := vpc.New(s, opts...)
	if err != nil {
		return nil, err
	}
	c := &Cloud{Cloud: cloud, imds: map[string]string{}}
	if c.EC2URL, err = c.listen(ec2Addr, ec2api.Handler(cloud), refusing); err != nil {
		cloud.Close()
		return nil, fmt.Errorf("serve the EC2 API: %w", err)
	}
	return c, nil
}

// Credentials returns the spec's first static key.
func (c *Cloud) Credentials() StaticKey {
	k := c.Spec().AccessKeys[0]
	return StaticKey{k.ID, k.Secret}
}

// IMDSURL returns the endpoint URL of the metadata service for one instance, by ID or name. The first call
// starts the service. The URL is empty if no port is free or the cloud is closed.
func (c *Cloud) IMDSURL(instance string) string {
	id := c.Instances.ID(instance)
	c.mu.Lock()
	url, ok := c.imds[id]
	c.mu.Unlock()
	if ok {
		return url
	}
	url, err := c.listen(anyPort, imds.Handler(c.Cloud, func(*http.Request) (string, bool) { return id, true }), plain)
	if err != nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.imds[id] = url
	return url
}

// ServeSTS serves AWS STS for the tokens of service accounts.
func (c *Cloud) ServeSTS() (url string, front *httpreply.Front, err error) {
	front = podroles.STS(c.Cloud)
	if url, err = c.listen(anyPort, front, plain); err != nil {
		return "", nil, fmt.Errorf("serve STS: %w", err)
	}
	return url, front, nil
}

// ServePodIdentity serves the EKS Pod Identity agent of an instance, by ID or name. The URL is that of its credentials.
func (c *Cloud) ServePodIdentity(instance string) (url string, front *httpreply.Front, err error) {
	front = podroles.Agent(c.Cloud, c.Instances.ID(instance))
	if url, err = c.listen(anyPort, front, plain); err != nil {
		return "", nil, fmt.Errorf("serve the Pod Identity agent: %w", err)
	}
	return url + podroles.AgentPath, front, nil
}

// ServeIMDS serves the metadata service for all instances at an address. A caller is the instance that
// owns its source address, or else the named one.
func (c *Cloud) ServeIMDS(addr, instance string) (url string, err error) {
	id := c.Instances.ID(instance)
	if _, ok := c.Snapshot().Instance(id); !ok {
		return "", fmt.Errorf("serve instance metadata: no instance %q", instance)
	}
	identify := func(r *http.Request) (string, bool) {
		if owner, ok := c.Snapshot().OwnerOf(r.RemoteAddr); ok {
			return owner, true
		}
		return id, true
	}
	if url, err = c.listen(addr, imds.Handler(c.Cloud, identify), plain); err != nil {
		return "", fmt.Errorf("serve instance metadata: %w", err)
	}
	return url, nil
}

// listen serves h at an address, with the listener wrapped by wrap, and returns its URL.
func (c *Cloud) listen(addr string, h http.Handler, wrap func(net.Listener) net.Listener) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return "", err
	}
	s := httpreply.Server(h, slog.DiscardHandler)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return "", errors.Join(errors.New("the cloud is closed"), ln.Close())
	}
	c.servers = append(c.servers, s)
	go func() { _ = s.Serve(wrap(ln)) }()
	return "http://" + ln.Addr().String(), nil
}

// refusing wraps the listener of the EC2 API; plain is for other services.
func refusing(ln net.Listener) net.Listener { return httpreply.Refusing(ln, ec2api.Refusal) }
func plain(ln net.Listener) net.Listener    { return ln }

// Close stops the cloud's services and timers.
func (c *Cloud) Close() {
	c.mu.Lock()
	c.closed = true
	servers := c.servers
	c.mu.Unlock()
	for _, s := range servers {
		_ = s.Close()
	}
	c.Cloud.Close()
}
