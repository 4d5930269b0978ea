package berthegress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
)

// book is what the Kubernetes API said last.
type book struct {
	mu     sync.Mutex // guards all below
	egress *v1alpha1.Egress
	slices map[types.UID]*v1alpha1.EgressClientSlice
	listed map[string]bool // by resource: that it was listed at all
	apiErr error           // of the last request; nil: it was answered
	failed uint64          // requests that failed
}

func newBook() *book {
	return &book{slices: map[types.UID]*v1alpha1.EgressClientSlice{}, listed: map[string]bool{}}
}

// complete tells whether it is known which clients there are and what they may reach; else why not.
func (b *book) complete() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, resource := range []string{egresses, clientSlices} {
		if b.listed[resource] {
			continue
		}
		if b.apiErr != nil {
			return fmt.Errorf("the Kubernetes API has not told yet of %s: %w", resource, b.apiErr)
		}
		return fmt.Errorf("the Kubernetes API has not told yet of %s", resource)
	}
	if b.egress == nil {
		return errNoEgress
	}
	return nil
}

// wanted is what follows for the gateway: destinations and clients, and what cannot be of them.
func (b *book) wanted() (destinations []netip.Prefix, clients []egressgateway.Client, garbage []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.egress != nil {
		for _, d := range b.egress.Spec.Destinations {
			p, err := netip.ParsePrefix(d)
			if err != nil || p.Masked() != p {
				garbage = append(garbage, fmt.Sprintf("destination %q of the Egress is no network", d))
				continue
			}
			destinations = append(destinations, p)
		}
	}
	addrs := map[string]map[netip.Addr]bool{}
	for _, s := range b.slices {
		for _, c := range s.Clients {
			if addrs[c.UID] == nil {
				addrs[c.UID] = map[netip.Addr]bool{}
			}
			for _, text := range c.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					garbage = append(garbage, fmt.Sprintf("address %q of client %s is none", text, c.UID))
					continue
				}
				addrs[c.UID][a.Unmap()] = true
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(addrs)) {
		clients = append(clients, egressgateway.Client{UID: uid, Addrs: slices.SortedFunc(maps.Keys(addrs[uid]), netip.Addr.Compare)})
	}
	return destinations, clients, garbage
}
