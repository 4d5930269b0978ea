package berthegress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
)

// roster is the clients that the kernel serves, for nodes that wait for a pod of theirs to be one.
type roster struct {
	mu      sync.Mutex // guards all below, memory only
	addrs   map[string][]netip.Addr
	changed chan struct{} // closed when there is another
	asking  int           // calls of await
}

func newRoster() *roster {
	return &roster{changed: make(chan struct{})}
}

// set takes all clients.
func (r *roster) set(clients []egressgateway.Client) {
	addrs := make(map[string][]netip.Addr, len(clients))
	for _, c := range clients {
		addrs[c.UID] = c.Addrs
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addrs = addrs
	close(r.changed)
	r.changed = make(chan struct{})
}

// mostAsking bounds the calls of await at one moment: each of the clients may be new.
const mostAsking = 4096

var errManyAsk = fmt.Errorf("%d ask at once already", mostAsking)

// await returns once a pod is served with all of some addresses. When ctx ends first the error says
// what lacks.
func (r *roster) await(ctx context.Context, pod string, addrs []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking == mostAsking {
		return errManyAsk
	}
	r.asking++
	defer func() { r.asking-- }()
	for {
		served, known := r.addrs[pod]
		if known && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(served, a) }) {
			return nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		switch {
		case ctx.Err() == nil:
		case known:
			return fmt.Errorf("pod %s is served with %v, and not yet with all of %v", pod, served, addrs)
		default:
			return fmt.Errorf("pod %s is not served yet", pod)
		}
	}
}

// longestAnswer is how long a question is kept waiting: less than a server has for an answer (package web).
const longestAnswer = 15 * time.Second

// mostAddresses is one of a family.
const mostAddresses = 2

// handleClient answers 200 once the gateway serves a pod of a UID with the addresses asked for, 503 when it
// does not before the question, or longestAnswer, is over, and 400 to what is no question. Whoever knows a pod's
// UID may know that.
func (r *roster) handleClient(w http.ResponseWriter, req *http.Request) {
	addrs, err := askedAddresses(req.URL.Query()[v1alpha1.EgressClientAddress])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), longestAnswer)
	defer cancel()
	if err := r.await(ctx, req.PathValue("uid"), addrs); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func askedAddresses(texts []string) (addrs []netip.Addr, err error) {
	if len(texts) == 0 || len(texts) > mostAddresses {
		return nil, fmt.Errorf("address is there %d times: expected the pod's addresses, one or two", len(texts))
	}
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, errors.New("address: expected an IP address")
		}
		addrs = append(addrs, a.Unmap())
	}
	return addrs, nil
}
