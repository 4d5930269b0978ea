package eni

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

const (
	groupsAge = time.Minute     // for which security groups found by tags are remembered
	routesAge = 5 * time.Minute // for which route tables are
	// outdatedAge is how old what outdated ENIs are known by may be.
	outdatedAge = 10 * time.Minute
)

// Shared is what the reconcilers of a process share: what EC2 told of subnets,
// security groups and routes, and whether it answers.
type Shared struct {
	Subnets *Subnets

	api    cloud.API
	groups *memory[[]string] // by VPC and tags
	routes *memory[vpcRoutes]
	outage *outage
}

// NewShared returns a Shared that has asked nothing yet. Answered, which may be
// nil, is called when EC2 was away and answers again: nodes that wait may go on at once.
// It is called from the goroutine that reconciles.
func NewShared(api cloud.API, c clock.Clock, answered func()) *Shared {
	return &Shared{
		Subnets: newSubnets(api, c), api: api,
		groups: newMemory[[]string](c, callTimeout, 2*outdatedAge), routes: newMemory[vpcRoutes](c, time.Minute, 0), outage: newOutage(answered),
	}
}

// findGroups lists the IDs of a VPC's security groups that carry all the tags.
// None is an error of class Gone that names the tags.
func (s *Shared) findGroups(ctx context.Context, vpc string, tags map[string]string, now time.Time) ([]string, error) {
	text := tagText(tags)
	a, err := s.groups.ask(ctx, groupsQuestion(vpc, tags), youngerThan(groupsAge, now), func(ctx context.Context) ([]string, error) {
		ids, err := s.api.SecurityGroups(ctx, vpc, tags)
		if err != nil {
			return nil, fmt.Errorf("find the security groups with tags %s: %w", text, err)
		}
		if len(ids) == 0 {
			return nil, gone("DescribeSecurityGroups", "no security group of %s has the tags %s", vpc, text)
		}
		return ids, nil
	})
	return a.value, err
}

// foundGroups are the groups that were found last, and whether that is not long ago.
func (s *Shared) foundGroups(vpc string, tags map[string]string) (ids []string, fresh bool) {
	a, fresh := s.groups.of(groupsQuestion(vpc, tags), outdatedAge)
	return a.value, fresh
}

func groupsQuestion(vpc string, tags map[string]string) string { return vpc + " " + tagText(tags) }

// tagText reads "a=1,b=2".
func tagText(tags map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, k+"="+tags[k])
	}
	return strings.Join(out, ",")
}

// vpcRoutes are one VPC's route tables.
type vpcRoutes struct {
	main string            // ID of the main one
	of   map[string]string // by subnet
}

// table is the route table of a subnet.
func (v vpcRoutes) table(subnet string) string {
	if t, ok := v.of[subnet]; ok {
		return t
	}
	return v.main
}

// findRoutes has the route tables of a VPC known.
func (s *Shared) findRoutes(ctx context.Context, vpc string, now time.Time) error {
	_, err := s.routes.ask(ctx, vpc, youngerThan(routesAge, now), func(ctx context.Context) (vpcRoutes, error) {
		list, err := s.api.RouteTables(ctx, vpc)
		if err != nil {
			return vpcRoutes{}, fmt.Errorf("find the route tables of %s: %w", vpc, err)
		}
		v := vpcRoutes{of: map[string]string{}}
		for _, t := range list {
			if t.Main {
				v.main = t.ID
			}
			for _, subnet := range t.Subnets {
				v.of[subnet] = t.ID
			}
		}
		return v, nil
	})
	return err
}
