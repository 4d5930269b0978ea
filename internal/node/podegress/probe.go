package podegress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// The node probes gateways, so that new connections of its pods avoid one that is gone before Kubernetes has noticed.
// Kubernetes takes 40 s when a whole node is gone (kube-controller-manager, --node-monitor-grace-period).
//
// Only the operator says which gateways there are, in the Egress's status. A probe can only divert new connections of
// this node's pods from a gateway while another one of the same Egress answers. So whoever can drop probes can move
// connections between gateways that may all serve them. Whoever answers at the address of a gateway that is gone is
// treated as without probes, until the operator drops the gateway. Where nodes cannot reach pods, no gateway answers,
// and all are used.
const (
	// ProbeFailures is how many consecutive probes of a gateway must fail before new connections avoid it. One
	// success is enough to use it again.
	ProbeFailures = 3
	// ProbeTimeout is how long a gateway has to answer.
	ProbeTimeout = time.Second
)

// Probe returns nil if somebody answers at an address, and otherwise why not.
type Probe func(ctx context.Context, to netip.AddrPort) error

// Connect probes by TCP. A refusal counts as an answer: the gateway's network serves its clients while its program
// restarts. The connection is reset, so that neither end keeps it (TIME-WAIT, RFC 9293 section 3.3.2).
func Connect(ctx context.Context, to netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	switch {
	case refusedConnection(err):
		return nil
	case err != nil:
		return fmt.Errorf("connect to gateway: %w", err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
	return nil
}

func refusedConnection(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// asked identifies a gateway that is probed.
type asked struct {
	egress use
	uid    string
	addrs  string // at which it is probed
}

func askedOf(u use, g gateway) asked {
	return asked{u, g.uid, strings.Join(texts(g.addrs), " ")}
}

// answers counts, for each probed gateway, the failures since the last success.
type answers map[asked]int

// silent returns the gateways that new connections are to avoid: those of each Egress of which ProbeFailures consecutive
// probes failed, while another one answers.
func (a answers) silent(of map[use][]gateway) map[use]silentOnes {
	out := map[use]silentOnes{}
	for u, list := range of {
		ones, answered := silentOnes{}, false
		for _, g := range list {
			failed, known := a[askedOf(u, g)]
			answered = answered || known && failed == 0
			if failed >= ProbeFailures {
				ones[g.uid] = true
			}
		}
		if answered && len(ones) > 0 {
			out[u] = ones
		}
	}
	return out
}

// keepOnly forgets gateways that are no longer probed.
func (a answers) keepOnly(of map[asked]gateway) {
	maps.DeleteFunc(a, func(g asked, _ int) bool { _, still := of[g]; return !still })
}

// toProbe returns the gateways of Egresses that have more than one: there is no alternative to a single gateway.
func toProbe(of map[use][]gateway) map[asked]gateway {
	out := map[asked]gateway{}
	for u, list := range of {
		if len(list) < 2 {
			continue
		}
		for _, g := range list {
			out[askedOf(u, g)] = g
		}
	}
	return out
}

// answer is the outcome of one probe.
type answer struct {
	of  asked
	err error
}

// prober probes gateways, each once however many pods use it. Its fields belong to the goroutine of run.
type prober struct {
	clients *Clients
	known   answers
	running map[asked]context.CancelFunc
	results chan answer
	wg      sync.WaitGroup
}

func newProber(c *Clients) *prober {
	return &prober{clients: c, known: answers{}, running: map[asked]context.CancelFunc{}, results: make(chan answer)}
}

// run probes the gateways that pods of this node use, until ctx ends.
func (p *prober) run(ctx context.Context) {
	c := p.clients
	ctx, end := context.WithCancel(ctx)
	defer p.wg.Wait()
	defer end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.probed:
			c.mu.Lock()
			of := toProbe(c.observed.gateways())
			c.mu.Unlock()
			p.follow(ctx, of)
		case r := <-p.results:
			if p.running[r.of] == nil {
				continue // its probes were ended
			}
			p.note(r)
		}
		c.mu.Lock()
		of, was := c.observed.gateways(), c.observed.silent
		c.mu.Unlock()
		if now := p.known.silent(of); !maps.EqualFunc(was, now, func(a, b silentOnes) bool { return maps.Equal(a, b) }) {
			c.change(func(o *observed) { o.silence(now) })
		}
	}
}

// follow probes these gateways and no others.
func (p *prober) follow(ctx context.Context, of map[asked]gateway) {
	for g, end := range p.running {
		if _, still := of[g]; !still {
			end()
			delete(p.running, g)
		}
	}
	for g, gw := range of {
		if p.running[g] == nil {
			one, end := context.WithCancel(ctx)
			p.running[g] = end
			p.wg.Go(func() { p.ask(one, g, gw.addrs) })
		}
	}
	p.known.keepOnly(of)
}

// ask probes one gateway until ctx ends, at random times about the interval apart.
func (p *prober) ask(ctx context.Context, g asked, addrs []netip.Addr) {
	clk, interval := p.clients.clock, p.clients.cfg.ProbeInterval
	wait := retry.Jitter(interval / 2) // many may be added at once
	for {
		select {
		case <-ctx.Done():
			return
		case <-clk.After(wait):
		}
		started := clk.Now()
		once, cancel := context.WithTimeout(ctx, ProbeTimeout)
		err := anyOf(once, addrs, p.clients.cfg.Probe)
		cancel()
		if ctx.Err() != nil {
			return // the probe was cut short
		}
		select {
		case <-ctx.Done():
			return
		case p.results <- answer{g, err}:
		}
		wait = retry.Jitter(interval) - clk.Now().Sub(started)
	}
}

// note counts a probe, and logs when a gateway ceases to answer and when it answers again.
func (p *prober) note(r answer) {
	before := p.known[r.of]
	if p.known[r.of]++; r.err == nil {
		p.known[r.of] = 0
	}
	log := p.clients.log.With("egress", r.of.egress.name.String(), "gateway", r.of.uid, "addresses", r.of.addrs)
	switch now := p.known[r.of]; {
	case before < ProbeFailures && now == ProbeFailures:
		log.Warn("gateway does not answer; new connections avoid it while another gateway of its Egress answers", "err", r.err)
	case before >= ProbeFailures && now == 0:
		log.Info("gateway answers again")
	}
}
