package pace

import (
	"reflect"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// A complete listing is checked for contradictions, also between its pages, and compared with the requested
// IDs. A contradictory one is treated like a lost reply: Transient.

// once finds duplicates across the pages of a listing.
type once[T any] struct {
	name string // field of the reply
	id   func(*T) string
	seen map[string]bool
}

func onlyOnce[T any](name string, id func(*T) string) *once[T] {
	return &once[T]{name, id, map[string]bool{}}
}

// check rejects a page with a duplicate. A nil receiver checks nothing.
func (o *once[T]) check(c Call, page []T) error {
	if o == nil {
		return nil
	}
	for i := range page {
		id := o.id(&page[i])
		if o.seen[id] {
			return malformed(c, "%s %q: expected no duplicates", o.name, id)
		}
		o.seen[id] = true
	}
	return nil
}

// checkInstances rejects instances that were not requested.
func checkInstances(ids []string, list []cloud.Instance) ([]cloud.Instance, error) {
	asked := make(map[string]bool, len(ids))
	for _, id := range ids {
		asked[id] = true
	}
	for i := range list {
		if !asked[list[i].ID] {
			return nil, malformed(DescribeInstances, "instancesSet %q: expected one of the requested ones", list[i].ID)
		}
	}
	return list, nil
}

// distinctENIs removes duplicate ENIs, which must be equal.
func distinctENIs(list []cloud.ENI) ([]cloud.ENI, error) {
	seen := make(map[string]int, len(list))
	out := list[:0]
	for _, e := range list {
		at, ok := seen[e.ID]
		switch {
		case !ok:
			seen[e.ID] = len(out)
			out = append(out, e)
		case !reflect.DeepEqual(out[at], e):
			return nil, malformed(DescribeENIs, "networkInterfaceSet %q: expected no duplicates", e.ID)
		}
	}
	return out, nil
}

// checkRouteTables rejects a second main table, and a subnet in two tables.
func checkRouteTables(list []cloud.RouteTable) ([]cloud.RouteTable, error) {
	main, of := "", map[string]string{}
	for _, t := range list {
		switch {
		case t.Main && main != "":
			return nil, malformed(DescribeRouteTables, "routeTableSet %q: expected one main table, which is %s", t.ID, main)
		case t.Main:
			main = t.ID
		}
		for _, s := range t.Subnets {
			if of[s] != "" {
				return nil, malformed(DescribeRouteTables, "routeTableSet[%s].associationSet %q: expected each subnet in one table", t.ID, s)
			}
			of[s] = t.ID
		}
	}
	return list, nil
}
