package podegress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
)

// An ADD asks the gateways that the pod's connections may take whether they serve it, and they
// answer when they do. Nothing hangs on that but when the pod starts: one that lies, or has taken
// the address of a gateway that is gone, has it start before its packets get through, or later
// by as long as an ADD may wait.

// Ask asks the gateway at an address for a pod with some addresses, and returns nil when it
// serves that. The error is errNoAnswer, and more, when nobody answers there before ctx ends.
type Ask func(ctx context.Context, to netip.AddrPort, pod string, addrs []netip.Addr) error

var errNoAnswer = errors.New("it does not answer")

const (
	// refusedAgain is how long after a refusal a gateway is asked again: its program starts, or
	// has too many connections.
	refusedAgain = 100 * time.Millisecond
	// mutedFor is how long no ADD waits for a gateway that did not answer one: where nodes cannot
	// reach pods, or the gateway's node is gone, pods need not wait each.
	mutedFor = 30 * time.Second
	// longestSaid is how much of what a gateway says is told, in bytes.
	longestSaid = 200
)

// asking is how gateways are asked over HTTP: no proxy, and nowhere else than at their address.
var asking = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, MaxResponseHeaderBytes: 4096},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// AskByHTTP is an Ask of berth-egress.
func AskByHTTP(ctx context.Context, to netip.AddrPort, pod string, addrs []netip.Addr) error {
	u := url.URL{
		Scheme: "http", Host: to.String(), Path: v1alpha1.EgressClientsPath + pod,
		RawQuery: url.Values{v1alpha1.EgressClientAddress: texts(addrs)}.Encode(),
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := asking.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, longestSaid))
	return fmt.Errorf("it answers %d: %s", answer.StatusCode, shown(string(text), longestSaid))
}

// Coming implements daemon.Egress.
func (c *Clients) Coming(rec attachment.Record) {
	if told(rec) && c.cfg.Kernel.Supported() == nil {
		c.change(func(b *book) { b.setUp(rec) })
	}
}

// Await implements daemon.Egress.
func (c *Clients) Await(ctx context.Context, rec attachment.Record) error {
	list := c.toAsk(rec)
	if !told(rec) || len(list) == 0 {
		return nil
	}
	begun := c.clock.Now()
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, g := range list {
		wg.Go(func() {
			if err := c.askFor(ctx, g, rec); err != nil {
				errs[i] = fmt.Errorf("gateway %s at %v: %w", g.UID, g.Addresses, err)
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	c.cfg.Observer.Served(c.clock.Now().Sub(begun), err)
	return err
}

// toAsk are the gateways that new connections of an attachment may take, each once, without
// those that lately did not answer.
func (c *Clients) toAsk(rec attachment.Record) (list []attachment.EgressGateway) {
	if rec.Egress == nil {
		return nil
	}
	now, seen := c.clock.Now(), map[string]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range rec.Egress.Egresses {
		for _, g := range u.Gateways {
			takes := g.Chosen || len(u.Service) > 0 && !g.Ending
			if takes && !seen[g.UID] && !c.book.muted[g.UID].After(now) {
				list, seen[g.UID] = append(list, g), true
			}
		}
	}
	return list
}

// askFor asks one gateway, at all of its addresses: the answer from one of them is enough.
func (c *Clients) askFor(ctx context.Context, g attachment.EgressGateway, rec attachment.Record) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan error, len(g.Addresses))
	for _, a := range g.Addresses {
		go func() { outcomes <- c.askAt(ctx, netip.AddrPortFrom(a, v1alpha1.EgressHealthPort), rec) }()
	}
	var errs []error
	for range g.Addresses {
		err := <-outcomes
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if errors.Is(err, errNoAnswer) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.book.mute(g.UID, c.clock.Now())
	}
	return err
}

// askAt asks at one address, again while it is refused, or hung up on: a gateway that has many
// connections closes some that wait (package web).
func (c *Clients) askAt(ctx context.Context, to netip.AddrPort, rec attachment.Record) error {
	for {
		err := c.cfg.Ask(ctx, to, rec.Pod.UID, ownAddresses(rec))
		if !refusedConnection(err) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-c.clock.After(refusedAgain):
		}
	}
}

// mute takes that a gateway did not answer, and forgets those of which that was long ago.
func (b *book) mute(gateway string, now time.Time) {
	for uid, until := range b.muted {
		if !until.After(now) {
			delete(b.muted, uid)
		}
	}
	b.muted[gateway] = now.Add(mutedFor)
}
