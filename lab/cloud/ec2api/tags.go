package ec2api

import (
	"maps"
	"slices"
	"strings"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

func createTags(r *request) (any, error) {
	ids, tags := r.list("ResourceId"), r.tags("Tag")
	if len(ids) == 0 || len(tags) == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain the parameters ResourceId and Tag"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.CreateTags(ids, tags)
}

func deleteTags(r *request) (any, error) {
	ids := r.list("ResourceId")
	tags := map[string]*string{}
	for _, p := range r.each("Tag") {
		k := r.need(p + "Key")
		tags[k] = nil
		if v, ok := r.lookup(p + "Value"); ok {
			tags[k] = &v
		}
	}
	if len(ids) == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain the parameter ResourceId"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.DeleteTags(ids, tags)
}

// tagRow is one tag of one resource.
type tagRow struct {
	ID    string `xml:"resourceId"`
	Kind  string `xml:"resourceType"`
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

// tagKey is the sort key of the tags of all resources.
func tagKey(t *tagRow) string { return t.ID + " " + t.Key }

func describeTags(r *request) (any, error) {
	fs, p := r.filters(), r.page("", 1000)
	if err := r.ready(); err != nil {
		return nil, err
	}
	list, err := apply(allTags(r.cloud.Described()), fs, tagFiltering)
	if err != nil {
		return nil, err
	}
	list, next := cut(r, p, list, tagKey)
	return struct {
		Tags []*tagRow `xml:"tagSet>item"`
		Next string    `xml:"nextToken,omitempty"`
	}{list, next}, nil
}

// allTags lists all tags, ordered by resource and key.
func allTags(v vpc.View) []*tagRow {
	var out []*tagRow
	add := func(kind, id string, tags vpc.Tags) {
		for _, k := range slices.Sorted(maps.Keys(tags)) {
			out = append(out, &tagRow{id, kind, k, tags[k]})
		}
	}
	for _, e := range v.ENIs() {
		add("network-interface", e.ID, e.Tags)
	}
	for _, i := range v.Instances() {
		add("instance", i.ID, i.Tags)
	}
	for _, t := range v.RouteTables() {
		add("route-table", t.ID, t.Tags)
	}
	for _, g := range v.Groups() {
		add("security-group", g.ID, g.Tags)
	}
	for _, s := range v.Subnets() {
		add("subnet", s.ID, s.Tags)
	}
	for _, n := range v.VPCs() {
		add("vpc", n.ID, n.Tags)
	}
	slices.SortStableFunc(out, func(a, b *tagRow) int { return strings.Compare(tagKey(a), tagKey(b)) })
	return out
}
