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

// servedClients are the clients that the kernel serves. Nodes wait until one of their pods is among them.
type servedClients struct {
	mu      sync.Mutex // guards all below, memory only
	addrs   map[string][]netip.Addr
	changed chan struct{} // closed and replaced by each set
	waiting int           // calls of await in flight
}

func newServedClients() *servedClients {
	return &servedClients{changed: make(chan struct{})}
}

// set replaces all clients.
func (r *servedClients) set(clients []egressgateway.Client) {
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

// maxWaiting bounds the calls of await in flight: each client may be new.
const maxWaiting = 4096

var errManyWaiting = fmt.Errorf("%d requests are waiting already", maxWaiting)

// await returns once a pod is served with all of the given addresses. If ctx ends first, the error lists the missing ones.
func (r *servedClients) await(ctx context.Context, pod string, addrs []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == maxWaiting {
		return errManyWaiting
	}
	r.waiting++
	defer func() { r.waiting-- }()
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

// maxWait is the maximum wait of a request, less than the server's write timeout (package web).
const maxWait = 15 * time.Second

// maxAddresses allows one address of each family.
const maxAddresses = 2

// handleClient answers 200 once the gateway serves the pod with a UID with the addresses of the request, 503 if it
// does not before the request ends or within maxWait, and 400 to an invalid request. It needs no authentication beyond
// knowing the pod's UID.
func (r *servedClients) handleClient(w http.ResponseWriter, req *http.Request) {
	addrs, err := parseAddresses(req.URL.Query()[v1alpha1.EgressClientAddress])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), maxWait)
	defer cancel()
	if err := r.await(ctx, req.PathValue("uid"), addrs); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func parseAddresses(texts []string) (addrs []netip.Addr, err error) {
	if len(texts) == 0 || len(texts) > maxAddresses {
		return nil, fmt.Errorf("address: got %d, expected the pod's addresses, one or two", len(texts))
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
