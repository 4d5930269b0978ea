package podegress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
)

// An ADD queries the gateways that the pod's connections may use whether they serve the pod. Only the start time of the
// pod depends on the reply: a malicious gateway, or a host that took over the address of a removed gateway, can make
// the pod start before its packets get through, or delay it by as long as an ADD may wait.

// Ask queries the gateway at an address whether it serves a pod with these addresses, and returns nil if it does. The
// error wraps errNoAnswer if there is no answer before ctx ends.
type Ask func(ctx context.Context, to netip.AddrPort, pod string, addrs []netip.Addr) error

var errNoAnswer = errors.New("it does not answer")

const (
	// refusedAgain is the delay after a refused connection: the gateway's program is starting, or has too many
	// connections.
	refusedAgain = 100 * time.Millisecond
	// mutedFor is how long ADDs do not wait for a gateway that did not answer. If nodes cannot reach pods, or the
	// gateway's node has failed, pods should not all have to wait.
	mutedFor = 30 * time.Second
	// longestSaid bounds the part of a gateway's reply that is passed on, in bytes.
	longestSaid = 200
)

// asking is the HTTP client for gateways, without proxies and redirects.
var asking = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, MaxResponseHeaderBytes: 4096},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// AskByHTTP queries berth-egress.
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

// asker queries gateways whether they serve pods.
type asker struct {
	ask   Ask
	clock clock.Clock

	mu    sync.Mutex           // guards muted
	muted map[string]time.Time // end of the time in which no ADD waits for a gateway, by UID
}

// await returns once all gateways of a list serve an attachment's pod. It fails if ctx ends first.
func (a *asker) await(ctx context.Context, list []attachment.EgressGateway, rec attachment.Record) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, g := range list {
		wg.Go(func() {
			if err := a.gateway(ctx, g, rec); err != nil {
				errs[i] = fmt.Errorf("gateway %s at %v: %w", g.UID, g.Addresses, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// gatewaysOf returns the gateways that new connections of an attachment may use, without duplicates and without those that
// recently did not answer.
func (a *asker) gatewaysOf(rec attachment.Record) (list []attachment.EgressGateway) {
	if rec.Egress == nil {
		return nil
	}
	now, seen := a.clock.Now(), map[string]bool{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range rec.Egress.Egresses {
		for _, g := range u.Gateways {
			takes := g.Chosen || len(u.Service) > 0 && !g.Ending
			if takes && !seen[g.UID] && !a.muted[g.UID].After(now) {
				list, seen[g.UID] = append(list, g), true
			}
		}
	}
	return list
}

// gateway queries one gateway at all of its addresses; one positive answer suffices.
func (a *asker) gateway(ctx context.Context, g attachment.EgressGateway, rec attachment.Record) error {
	err := anyOf(ctx, g.Addresses, func(ctx context.Context, to netip.AddrPort) error { return a.askAt(ctx, to, rec) })
	if errors.Is(err, errNoAnswer) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		a.mute(g.UID)
	}
	return err
}

// anyOf calls ask for the health port of all addresses concurrently, and returns nil once one call succeeds.
func anyOf(ctx context.Context, addrs []netip.Addr, ask func(context.Context, netip.AddrPort) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan error, len(addrs))
	for _, a := range addrs {
		go func() { outcomes <- ask(ctx, netip.AddrPortFrom(a, v1alpha1.EgressHealthPort)) }()
	}
	var errs []error
	for range addrs {
		err := <-outcomes
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// askAt queries one address, and retries while the connection is refused or closed: a gateway with many connections
// closes idle ones (package web).
func (a *asker) askAt(ctx context.Context, to netip.AddrPort, rec attachment.Record) error {
	for {
		err := a.ask(ctx, to, rec.Pod.UID, ownAddresses(rec))
		if !refusedConnection(err) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-a.clock.After(refusedAgain):
		}
	}
}

// mute notes that a gateway did not answer.
func (a *asker) mute(gateway string) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.muted, func(_ string, until time.Time) bool { return !until.After(now) })
	a.muted[gateway] = now.Add(mutedFor)
}
