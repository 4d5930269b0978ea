package pace

import (
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// list is a filter field with any number of values.
type list[F any] struct {
	values []string
	put    func(part *F, values []string)
}

// parts splits a filter into filters that EC2 accepts and that together match the same elements: it splits the
// lists so that no part has too many values. Single is the number of values outside the lists.
func parts[F any](f F, single int, lists ...list[F]) []F {
	lists = slices.DeleteFunc(lists, func(l list[F]) bool { return len(l.values) == 0 })
	room, all := filterValues-single, 0
	for _, l := range lists {
		all += len(l.values)
	}
	out := []F{f}
	if len(lists) == 0 || all <= room {
		return out
	}
	most := max(1, room/len(lists))
	for _, l := range lists {
		var cut []F
		for _, part := range out {
			for some := range slices.Chunk(l.values, most) {
				l.put(&part, some)
				cut = append(cut, part)
			}
		}
		out = cut
	}
	return out
}

// given counts the non-empty values.
func given(values ...string) (n int) {
	for _, v := range values {
		if v != "" {
			n++
		}
	}
	return n
}

// eniParts splits an ENI filter.
func eniParts(f cloud.ENIFilter) []cloud.ENIFilter {
	lists := []list[cloud.ENIFilter]{
		{f.IDs, func(part *cloud.ENIFilter, ids []string) { part.IDs = ids }},
		{f.InstanceIDs, func(part *cloud.ENIFilter, ids []string) { part.InstanceIDs = ids }},
	}
	for _, key := range slices.Sorted(maps.Keys(f.Tagged)) {
		lists = append(lists, list[cloud.ENIFilter]{f.Tagged[key], func(part *cloud.ENIFilter, values []string) {
			part.Tagged = maps.Clone(part.Tagged)
			part.Tagged[key] = values
		}})
	}
	return parts(f, given(f.InstanceID, f.VPCID, f.Status)+len(f.Types)+len(f.Tags), lists...)
}

// subnetParts splits a subnet filter.
func subnetParts(f cloud.SubnetFilter) []cloud.SubnetFilter {
	return parts(f, given(f.VPCID, f.Zone)+len(f.Tags), list[cloud.SubnetFilter]{
		f.IDs, func(part *cloud.SubnetFilter, ids []string) { part.IDs = ids },
	})
}
