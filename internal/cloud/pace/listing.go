package pace

import (
	"reflect"

	"github.com/berthnet/berth/internal/cloud"
)

// A complete listing, which came in several pages, is compared with itself and
// with the IDs that were asked for. One that says two things of one is as good as
// lost: Transient.

// checkOnce refuses a listing in which an ID is twice. What is its name in the answer.
func checkOnce[T any](c Call, what string, list []T, id func(*T) string) ([]T, error) {
	seen := make(map[string]bool, len(list))
	for i := range list {
		if seen[id(&list[i])] {
			return nil, malformed(c, "%s %q: expected each once", what, id(&list[i]))
		}
		seen[id(&list[i])] = true
	}
	return list, nil
}

// checkInstances refuses instances that nobody asked for, or that are there twice.
func checkInstances(ids []string, list []cloud.Instance) ([]cloud.Instance, error) {
	asked := make(map[string]bool, len(ids))
	for _, id := range ids {
		asked[id] = true
	}
	for i := range list {
		if !asked[list[i].ID] {
			return nil, malformed(DescribeInstances, "instancesSet %q: expected one of those asked for", list[i].ID)
		}
	}
	return checkOnce(DescribeInstances, "instancesSet", list, func(in *cloud.Instance) string { return in.ID })
}

// distinctENIs is a listing with each ENI once; one that is there twice has to be
// the same.
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
			return nil, malformed(DescribeENIs, "networkInterfaceSet %q: expected each once", e.ID)
		}
	}
	return out, nil
}

// checkRouteTables refuses two main tables, and a subnet of two.
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
