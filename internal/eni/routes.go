package eni

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// A pod in a subnet whose routes are not those of the node's own may lack the
// way that the others have: a peered network, a NAT gateway. So where a new
// ENI may be made in several subnets, those with the route table of the
// primary's subnet come first; the others only when none of these has all that
// is asked for.

// routesAge is how long route tables are remembered.
const routesAge = 5 * time.Minute

// routesTries is how often in a row route tables are asked for before an ENI is
// made without knowing them.
const routesTries = 3

// RouteBook is which subnets of a VPC have the same route table, remembered for
// some minutes. One is shared by all reconcilers of a process.
type RouteBook struct {
	api    cloud.API
	clock  clock.Clock
	asking singleflight.Group // calls under way, by VPC

	mu  sync.Mutex // guards all; memory only
	all map[string]vpcRoutes
}

// vpcRoutes are one VPC's route tables.
type vpcRoutes struct {
	main string            // ID of the main one
	of   map[string]string // by subnet
	at   time.Time
}

// NewRouteBook returns an empty book.
func NewRouteBook(api cloud.API, c clock.Clock) *RouteBook {
	return &RouteBook{api: api, clock: c, all: map[string]vpcRoutes{}}
}

// table is the route table of a subnet.
func (v vpcRoutes) table(subnet string) string {
	if t, ok := v.of[subnet]; ok {
		return t
	}
	return v.main
}

// known returns the route tables of a VPC as last described, and whether that is new
// enough to go by.
func (b *RouteBook) known(vpc string) (v vpcRoutes, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.all[vpc]
	return v, ok && b.clock.Now().Sub(v.at) < routesAge
}

// Refresh asks for the route tables of a VPC, once for all who ask meanwhile.
func (b *RouteBook) Refresh(ctx context.Context, vpc string) error {
	_, err, _ := b.asking.Do(vpc, func() (any, error) {
		if _, fresh := b.known(vpc); fresh {
			return nil, nil // by a call that ended since it was missed
		}
		now := b.clock.Now()
		// The caller's end must not be that of others who wait with it.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		list, err := b.api.RouteTables(call, vpc)
		if err != nil {
			return nil, fmt.Errorf("find the route tables of %s: %w", vpc, err)
		}
		v := vpcRoutes{of: map[string]string{}, at: now}
		for _, t := range list {
			if t.Main {
				v.main = t.ID
			}
			for _, s := range t.Subnets {
				v.of[s] = t.ID
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all[vpc] = v
		return nil, nil
	})
	return err
}

// routesMatter tells whether Berth is to choose among subnets by their routes, and
// what is compared: the VPC and the primary's subnet. A person who names subnets by ID
// has chosen, and another VPC has no routes like the instance's.
func (r *Reconciler) routesMatter(list []plan.Subnet) (vpc, home string, ok bool) {
	n := 0
	for _, s := range list {
		if s.ForNew {
			n++
		}
	}
	k, found := r.view.primary()
	if !found || n < 2 || len(r.cfg.SubnetIDs) > 0 {
		return "", "", false
	}
	vpc, _ = r.vpcAndZone()
	return vpc, k.SubnetID, vpc != "" && vpc == cmp.Or(k.VPCID, r.instance.vpc)
}

// routesKnown is what a plan knew of the subnets' routes.
type routesKnown struct {
	matters bool // there is a choice to make by them
	known   bool // they were asked for once
	fresh   bool // and not old
}

// markRoutes notes of subnets that their routes are not the primary's, as far as known.
func (r *Reconciler) markRoutes(list []plan.Subnet) routesKnown {
	vpc, home, ok := r.routesMatter(list)
	if !ok {
		return routesKnown{}
	}
	routes, fresh := r.cfg.Routes.known(vpc)
	for i := range list {
		list[i].OtherRoutes = routes.table(list[i].ID) != routes.table(home)
	}
	return routesKnown{true, !routes.at.IsZero(), fresh}
}

// routesMissing tells whether to ask for route tables before an ENI is made by
// a plan that knew so much of them, and whether to wait with it.
func (r *Reconciler) routesMissing(w routesKnown, now time.Time) (ask, wait bool) {
	if !w.matters || w.fresh {
		return false, false
	}
	if !r.retries.closed(gateRoutes, now) {
		return true, false
	}
	// Older ones do, and who may not ask goes on as if all were alike.
	b := r.retries.failed[gateRoutes]
	hopeless := b.permanent() || b.failures >= routesTries
	return false, !w.known && !hopeless
}

// findRoutes asks for the route tables of the VPC of new ENIs.
func (r *Reconciler) findRoutes(ctx context.Context) error {
	vpc, _ := r.vpcAndZone()
	return r.cfg.Routes.Refresh(ctx, vpc)
}
