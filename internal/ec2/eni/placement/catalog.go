package placement

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
	callTimeout = 5 * time.Minute // of a question that a node waits for, its wait for the rate limit included
	groupsAge   = time.Minute     // for which security groups found by tags are used for new ENIs
	routesAge   = 5 * time.Minute // for which route tables are used
	// outdatedAge is how old the descriptions may be by which ENIs are judged outdated.
	outdatedAge = 10 * time.Minute
)

// Catalog is what EC2 told of subnets, security groups and route tables. All
// reconcilers of a process share one. Its methods may be called concurrently.
type Catalog struct {
	Subnets *Subnets

	api    cloud.API
	groups *cache[[]string] // by VPC and tags
	routes *cache[vpcRoutes]
}

// NewCatalog returns an empty catalog.
func NewCatalog(api cloud.API, c clock.Clock) *Catalog {
	return &Catalog{
		Subnets: newSubnets(api, c), api: api,
		groups: newCache[[]string](c, callTimeout, 2*outdatedAge), routes: newCache[vpcRoutes](c, time.Minute, 0),
	}
}

// findGroups returns the IDs of the security groups of a VPC that carry all tags.
// It is an error of class cloud.Gone if there is none.
func (s *Catalog) findGroups(ctx context.Context, vpc string, tags map[string]string, now time.Time) ([]string, error) {
	text := tagText(tags)
	a, err := s.groups.ask(ctx, groupsQuestion(vpc, tags), youngerThan(groupsAge, now), func(ctx context.Context) ([]string, error) {
		ids, err := s.api.SecurityGroups(ctx, vpc, tags)
		if err != nil {
			return nil, fmt.Errorf("find the security groups with tags %s: %w", text, err)
		}
		if len(ids) == 0 {
			return nil, &cloud.Error{Class: cloud.Gone, Op: "DescribeSecurityGroups", Message: fmt.Sprintf("no security group of %s has the tags %s", vpc, text)}
		}
		return ids, nil
	})
	return a.value, err
}

// foundGroups returns the groups that were found last, and whether that is at
// most outdatedAge ago.
func (s *Catalog) foundGroups(vpc string, tags map[string]string) (ids []string, fresh bool) {
	a, fresh := s.groups.get(groupsQuestion(vpc, tags), outdatedAge)
	return a.value, fresh
}

func groupsQuestion(vpc string, tags map[string]string) string { return vpc + " " + tagText(tags) }

// tagText formats tags as "a=1,b=2".
func tagText(tags map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, k+"="+tags[k])
	}
	return strings.Join(out, ",")
}

// vpcRoutes are the route tables of one VPC.
type vpcRoutes struct {
	main string            // ID of the main one
	of   map[string]string // ID by subnet
}

// table returns the ID of a subnet's route table.
func (v vpcRoutes) table(subnet string) string {
	if t, ok := v.of[subnet]; ok {
		return t
	}
	return v.main
}

// findRoutes loads the route tables of a VPC unless they are fresh.
func (s *Catalog) findRoutes(ctx context.Context, vpc string, now time.Time) error {
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
