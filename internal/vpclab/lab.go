// Package vpclab is a VPC on one machine, for tests, the demo and development.
// Serve starts its two HTTP services, the EC2 API and the instance metadata
// service, on loopback ports within the calling process; any number of labs
// may run side by side.
package vpclab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/berthnet/berth/internal/vpclab/ec2"
	"github.com/berthnet/berth/internal/vpclab/imds"
	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/internal/vpclab/vpc"
	"github.com/berthnet/berth/internal/vpclab/wire"
)

// anyPort is a loopback port of the system's choice.
const anyPort = "127.0.0.1:0"

// Lab is a served cloud.
type Lab struct {
	Cloud  *vpc.Cloud
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

// Serve makes the cloud of a spec and serves its EC2 API on a loopback port of
// the system's choice. Close it when done.
func Serve(s spec.Spec, opts ...vpc.Option) (*Lab, error) { return ServeOn(anyPort, s, opts...) }

// ServeOn is Serve with the EC2 API at a given address.
func ServeOn(ec2Addr string, s spec.Spec, opts ...vpc.Option) (*Lab, error) {
	cloud, err := vpc.New(s, opts...)
	if err != nil {
		return nil, err
	}
	l := &Lab{Cloud: cloud, imds: map[string]string{}}
	if l.EC2URL, err = l.listen(ec2Addr, ec2.Handler(cloud), refusing); err != nil {
		cloud.Close()
		return nil, fmt.Errorf("serve the EC2 API: %w", err)
	}
	return l, nil
}

// Credentials is the spec's first static key.
func (l *Lab) Credentials() StaticKey {
	k := l.Cloud.Spec().AccessKeys[0]
	return StaticKey{k.ID, k.Secret}
}

// IMDSURL is the endpoint URL of the metadata service as one instance, named
// by ID or name, sees it. The service starts with the first call; the URL is
// empty when no port is to be had or the lab is closed.
func (l *Lab) IMDSURL(instance string) string {
	id := l.Cloud.InstanceID(instance)
	l.mu.Lock()
	url, ok := l.imds[id]
	l.mu.Unlock()
	if ok {
		return url
	}
	url, err := l.listen(anyPort, imds.Handler(l.Cloud, func(*http.Request) (string, bool) { return id, true }), plain)
	if err != nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.imds[id] = url
	return url
}

// ServeIMDS serves the metadata service at an address for all instances. A
// caller is the instance that owns its source address, else the one named.
func (l *Lab) ServeIMDS(addr, instance string) (url string, err error) {
	id := l.Cloud.InstanceID(instance)
	if _, ok := l.Cloud.Snapshot().Instance(id); !ok {
		return "", fmt.Errorf("serve instance metadata: no instance %q", instance)
	}
	identify := func(r *http.Request) (string, bool) {
		if owner, ok := l.Cloud.Snapshot().OwnerOf(r.RemoteAddr); ok {
			return owner, true
		}
		return id, true
	}
	if url, err = l.listen(addr, imds.Handler(l.Cloud, identify), plain); err != nil {
		return "", fmt.Errorf("serve instance metadata: %w", err)
	}
	return url, nil
}

// listen serves h at an address, with what wrap makes of the listener, and
// returns its URL.
func (l *Lab) listen(addr string, h http.Handler, wrap func(net.Listener) net.Listener) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return "", err
	}
	s := wire.Server(h, slog.DiscardHandler)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return "", errors.Join(errors.New("the lab is closed"), ln.Close())
	}
	l.servers = append(l.servers, s)
	go func() { _ = s.Serve(wrap(ln)) }()
	return "http://" + ln.Addr().String(), nil
}

// refusing is a listener of the EC2 API, plain one of another service.
func refusing(ln net.Listener) net.Listener { return wire.Refusing(ln, ec2.Refusal) }
func plain(ln net.Listener) net.Listener    { return ln }

// Close ends the lab's services and timers.
func (l *Lab) Close() {
	l.mu.Lock()
	l.closed = true
	servers := l.servers
	l.mu.Unlock()
	for _, s := range servers {
		_ = s.Close()
	}
	l.Cloud.Close()
}
