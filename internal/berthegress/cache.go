package berthegress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kubeapi"
)

// apiCache is the last known state of the gateway's Egress and the slices of its clients.
type apiCache struct {
	mu     sync.Mutex // guards all below
	egress *v1alpha1.Egress
	slices map[types.UID]*v1alpha1.EgressClientSlice
	listed map[string]bool // whether a resource was ever listed
	apiErr error           // error of the last request, or nil
	failed uint64          // number of failed requests
}

func newAPICache() *apiCache {
	return &apiCache{slices: map[types.UID]*v1alpha1.EgressClientSlice{}, listed: map[string]bool{}}
}

// complete returns nil if both kinds were listed and the Egress exists, or the reason otherwise.
func (c *apiCache) complete() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range []string{egresses, clientSlices} {
		if c.listed[resource] {
			continue
		}
		if c.apiErr != nil {
			return fmt.Errorf("%s were not listed from the Kubernetes API yet: %w", resource, c.apiErr)
		}
		return fmt.Errorf("%s were not listed from the Kubernetes API yet", resource)
	}
	if c.egress == nil {
		return errNoEgress
	}
	return nil
}

// desired returns the destinations and clients of the gateway, and describes invalid ones, which it leaves out.
func (c *apiCache) desired() (destinations []netip.Prefix, clients []egressgateway.Client, garbage []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.egress != nil {
		for _, d := range c.egress.Spec.Destinations {
			p, err := netip.ParsePrefix(d)
			if err != nil || p.Masked() != p {
				garbage = append(garbage, fmt.Sprintf("destination %q of the Egress is not a network", d))
				continue
			}
			destinations = append(destinations, p)
		}
	}
	addrs := map[string]map[netip.Addr]bool{}
	for _, s := range c.slices {
		for _, client := range s.Clients {
			if addrs[client.UID] == nil {
				addrs[client.UID] = map[netip.Addr]bool{}
			}
			for _, text := range client.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					garbage = append(garbage, fmt.Sprintf("address %q of client %s is not an IP address", text, client.UID))
					continue
				}
				addrs[client.UID][a.Unmap()] = true
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(addrs)) {
		clients = append(clients, egressgateway.Client{UID: uid, Addrs: slices.SortedFunc(maps.Keys(addrs[uid]), netip.Addr.Compare)})
	}
	return destinations, clients, garbage
}

// Resources that a gateway reads, of its own Egress only.
const (
	egresses     = "egresses"
	clientSlices = "egressclientslices"
)

var errNoEgress = errors.New("the Egress does not exist")

// follow watches the Egress and its clients until ctx ends.
func (a *agent) follow(ctx context.Context, api *kubeapi.Client) {
	own := api.Objects(egresses, kubeapi.FieldEquals("metadata.name", a.cfg.EgressName), func() runtime.Object { return &v1alpha1.EgressList{} })
	of := api.Labelled(clientSlices, labels.Set{v1alpha1.LabelEgress: a.cfg.EgressName}.String(), func() runtime.Object { return &v1alpha1.EgressClientSliceList{} })
	var both sync.WaitGroup
	both.Go(func() {
		kubeapi.Follow(ctx, egresses, own, kubeapi.Handler[*v1alpha1.Egress]{
			Outcome: a.requested,
			Put:     func(e *v1alpha1.Egress) { a.update(egresses, func(c *apiCache) { c.egress = e }) },
			Gone: func(gone *v1alpha1.Egress) {
				a.update(egresses, func(c *apiCache) {
					if c.egress != nil && c.egress.UID == gone.UID {
						c.egress = nil
					}
				})
			},
			All: func(list []*v1alpha1.Egress) {
				a.update(egresses, func(c *apiCache) {
					c.egress = nil
					for _, e := range list {
						c.egress = e
					}
				})
			},
		})
	})
	both.Go(func() {
		kubeapi.Follow(ctx, clientSlices, of, kubeapi.Handler[*v1alpha1.EgressClientSlice]{
			Outcome: a.requested,
			Put:     func(s *v1alpha1.EgressClientSlice) { a.update(clientSlices, func(c *apiCache) { c.slices[s.UID] = s }) },
			Gone: func(s *v1alpha1.EgressClientSlice) {
				a.update(clientSlices, func(c *apiCache) { delete(c.slices, s.UID) })
			},
			All: func(list []*v1alpha1.EgressClientSlice) {
				a.update(clientSlices, func(c *apiCache) {
					c.slices = map[types.UID]*v1alpha1.EgressClientSlice{}
					for _, s := range list {
						c.slices[s.UID] = s
					}
				})
			},
		})
	})
	both.Wait()
}

// update changes the cache and wakes reconcile.
func (a *agent) update(resource string, change func(*apiCache)) {
	a.cache.mu.Lock()
	change(a.cache)
	a.cache.listed[resource] = true
	a.cache.mu.Unlock()
	a.changed.Set()
}

// requested records the outcome of a request. It logs when the API stops responding, and when it responds again.
func (a *agent) requested(err error) {
	if kubeapi.Cancelled(err) {
		return
	}
	a.cache.mu.Lock()
	before := a.cache.apiErr
	a.cache.apiErr = err
	if err != nil {
		a.cache.failed++
	}
	a.cache.mu.Unlock()
	switch {
	case err != nil && before == nil:
		a.log.Warn("the Kubernetes API does not answer; serving the clients known so far", "err", err)
	case err == nil && before != nil:
		a.log.Info("the Kubernetes API answers again")
	}
}
