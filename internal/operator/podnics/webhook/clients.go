package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/listener"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Anybody who reaches the webhook's port could find out what pods of any namespace would get. The webhook therefore answers only the API
// server, which it recognizes by its address (an endpoint of the Service default/kubernetes, or a node's) or, if the Secret has an
// authority for that, by a client certificate.

const (
	// lookForClients is the interval at which the addresses are read, and lookAgain the minimum interval, when a connection comes from
	// an unknown address.
	lookForClients = 10 * time.Second
	lookAgain      = time.Second
	lookTimeout    = 2 * time.Second // less than the API server waits for a response
	tellAgain      = time.Minute     // between log lines about refused connections
)

// clients decides which clients are answered.
type clients struct {
	servers func(context.Context) ([]netip.Addr, error) // endpoints of the API server
	nodes   func(context.Context) ([]netip.Addr, error)
	also    []netip.Prefix // from Options.Clients
	// authority returns the authority of client certificates, or nil if none are required.
	authority func() *x509.CertPool
	clock     clock.Clock
	log       *slog.Logger
	metrics   *Metrics

	looking sync.Mutex // held while addresses are read
	looked  time.Time  // guarded by looking

	mu     sync.Mutex // guards the fields below
	known  map[netip.Addr]place
	failed error     // why known has never been read; an older value stays in use
	stale  bool      // whether a failure to read known again was logged
	logged time.Time // when a refused connection was last logged
}

type place int

const (
	ofNode place = iota + 1
	ofAPIServer
)

var errNotAsked = errors.New("only the API server may ask")

// handshake returns tls.Config.GetConfigForClient of a server whose configuration is base.
func (c *clients) handshake(base *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if pool := c.authority(); pool != nil {
			with := base.Clone()
			with.GetConfigForClient, with.ClientAuth, with.ClientCAs = nil, tls.RequireAndVerifyClientCert, pool
			return with, nil
		}
		from, to := listener.AddrOf(hello.Conn.RemoteAddr()), listener.AddrOf(hello.Conn.LocalAddr())
		if from == to || c.mayAsk(hello.Context(), from) {
			return nil, nil
		}
		c.refused(from)
		return nil, errNotAsked
	}
}

// mayAsk reports whether an address may be the API server's. For an unknown address, the addresses are read again.
func (c *clients) mayAsk(ctx context.Context, from netip.Addr) bool {
	if from.IsLoopback() || slices.ContainsFunc(c.also, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return true
	}
	if at, _ := c.find(from); at != 0 {
		return true
	}
	c.look(ctx, lookAgain)
	at, err := c.find(from)
	return at != 0 || err != nil // otherwise pods of namespaces with policies could not be created
}

// preferred reports whether an address is known to be the API server's.
func (c *clients) preferred(from netip.Addr) bool {
	at, _ := c.find(from)
	return at == ofAPIServer
}

func (c *clients) find(a netip.Addr) (place, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[a], c.failed
}

func (c *clients) run(ctx context.Context) error {
	for {
		c.look(ctx, 0)
		select {
		case <-ctx.Done():
			return nil
		case <-c.clock.After(lookForClients):
		}
	}
}

// look reads the addresses unless they were read within the given time.
func (c *clients) look(ctx context.Context, within time.Duration) {
	c.looking.Lock()
	defer c.looking.Unlock()
	if now := c.clock.Now(); !c.looked.IsZero() && now.Sub(c.looked) < within {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // others may be waiting for the result
	defer cancel()
	known := map[netip.Addr]place{}
	nodes, errNodes := c.nodes(ctx)
	servers, errServers := c.servers(ctx)
	for _, a := range nodes {
		known[a] = ofNode
	}
	for _, a := range servers {
		known[a] = ofAPIServer
	}
	err := errors.Join(errNodes, errServers)
	c.looked = c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.known, c.failed, c.stale = known, nil, false
	case c.known == nil && c.failed == nil:
		c.failed = err
		c.log.Warn("reading the addresses of the API server failed: the webhook answers all clients", "err", err)
	case c.known != nil:
		maps.Copy(c.known, known) // keep those that could be read
		if !c.stale {
			c.log.Warn("reading the addresses of the API server and the nodes failed: the webhook answers the addresses that it knows", "err", err)
		}
		c.stale = true
	}
}

func (c *clients) refused(from netip.Addr) {
	c.metrics.refused.Inc()
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.logged.IsZero() && now.Sub(c.logged) < tellAgain {
		return
	}
	c.logged = now
	c.log.Warn("refused a connection to the webhook: its address is neither the API server's nor a node's; list it in --webhook-clients if the API server's requests come from there", "from", from)
}

// serversOf reads the endpoints of the Service default/kubernetes.
func serversOf(r client.Reader) func(context.Context) ([]netip.Addr, error) {
	return func(ctx context.Context) (list []netip.Addr, err error) {
		o := &discoveryv1.EndpointSlice{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}, o); err != nil {
			return nil, fmt.Errorf("read EndpointSlice default/kubernetes: %w", err)
		}
		for _, e := range o.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					list = append(list, a.Unmap())
				}
			}
		}
		return list, nil
	}
}

// nodesOf returns the addresses of all Nodes in a cache.
func nodesOf(r client.Reader) func(context.Context) ([]netip.Addr, error) {
	return func(ctx context.Context) (list []netip.Addr, err error) {
		nodes := &corev1.NodeList{}
		if err := r.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list Nodes from the cache: %w", err)
		}
		for i := range nodes.Items {
			list = append(list, watched.AddressesOf(&nodes.Items[i])...)
		}
		return list, nil
	}
}
