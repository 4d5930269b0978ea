package pace_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// lists answers listings: each ENI filter with the combinations that it lets through and
// the most values that one has, and subnets with one page after the other, of one subnet each.
type lists struct {
	pace.Calls
	id, token   func(page int) string
	pairs, most int
	pages       int
	subnets     []cloud.SubnetFilter
}

func (l *lists) ENIPage(_ context.Context, f cloud.ENIFilter, _ string) ([]cloud.ENI, string, error) {
	pairs, values := 1, len(f.Tags)+len(f.Types)
	lists := [][]string{f.IDs, f.InstanceIDs}
	for _, v := range f.Tagged {
		lists = append(lists, v)
	}
	for _, v := range lists {
		pairs *= max(1, len(v))
		values += len(v)
	}
	for _, v := range []string{f.InstanceID, f.VPCID, f.Status} {
		if v != "" {
			values++
		}
	}
	l.pages++
	l.pairs += pairs
	l.most = max(l.most, values)
	return nil, "", nil
}

func (l *lists) SubnetPage(_ context.Context, f cloud.SubnetFilter, _ string) ([]cloud.Subnet, string, error) {
	l.pages++
	l.subnets = append(l.subnets, f)
	return []cloud.Subnet{{ID: l.id(l.pages)}}, l.token(l.pages), nil
}

// A filter with more values than a call takes asks for all combinations, each time with
// no more values than a call takes.
func TestFiltersAreAskedForWhole(t *testing.T) {
	const most = 200
	ids := make([]string, 450)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for name, tt := range map[string]struct {
		f             cloud.ENIFilter
		combinations  int
		calls, values int
	}{
		"none":            {cloud.ENIFilter{}, 1, 1, 0},
		"no values":       {cloud.ENIFilter{Tagged: map[string][]string{"a": {}}, IDs: ids[:1]}, 1, 1, 1},
		"as many":         {cloud.ENIFilter{IDs: ids[:most]}, most, 1, most},
		"one more":        {cloud.ENIFilter{IDs: ids[:most], VPCID: "v"}, most, 2, most},
		"of one kind":     {cloud.ENIFilter{IDs: ids}, 450, 3, most},
		"of a tag":        {cloud.ENIFilter{Tagged: map[string][]string{"a": ids}, Tags: map[string]string{"b": "c", "d": "e"}, Types: []cloud.InterfaceType{"x", "y"}, InstanceID: "i"}, 450, 3, most},
		"few of two":      {cloud.ENIFilter{IDs: ids[:50], InstanceIDs: ids[:150]}, 50 * 150, 1, most},
		"of two":          {cloud.ENIFilter{IDs: ids, InstanceIDs: ids}, 450 * 450, 25, most},
		"of two tags":     {cloud.ENIFilter{Tagged: map[string][]string{"a": ids, "b": ids[:90]}, Status: "s"}, 450 * 90, 5, 190},
		"of four":         {cloud.ENIFilter{Tagged: map[string][]string{"a": ids, "b": ids[:2]}, IDs: ids[:3], InstanceIDs: ids[:4]}, 450 * 2 * 3 * 4, 9, 59},
		"too many others": {cloud.ENIFilter{Tags: tags(most), IDs: ids[:2]}, 2, 2, most + 1}, // EC2 says so
		"only others":     {cloud.ENIFilter{Tags: tags(most + 1)}, 1, 1, most + 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lists{}
			_, err := pace.Cloud(l, pace.Options{}).ENIs(t.Context(), tt.f)
			if err != nil || l.pairs != tt.combinations || l.pages != tt.calls || l.most != tt.values {
				t.Errorf("asked for %d combinations in %d calls, %d values the most, %v; want %d in %d, %d the most",
					l.pairs, l.pages, l.most, err, tt.combinations, tt.calls, tt.values)
			}
			if d := len(tt.f.Tagged["a"]); d > 0 && d != 450 {
				t.Errorf("the caller's filter has %d values now", d)
			}
		})
	}
}

func tags(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprint(i)] = "x"
	}
	return out
}

// Subnets are asked for likewise.
func TestFiltersOfSubnetsAreAskedForWhole(t *testing.T) {
	ids := make([]string, 300)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	l := &lists{id: func(page int) string { return fmt.Sprint(page) }, token: func(int) string { return "" }}
	_, err := pace.Cloud(l, pace.Options{}).Subnets(t.Context(), cloud.SubnetFilter{IDs: ids, VPCID: "v", Zone: "z", Tags: tags(3)})
	var got []string
	for _, f := range l.subnets {
		got = append(got, f.IDs...)
		if len(f.IDs) > 195 || f.VPCID != "v" || f.Zone != "z" || len(f.Tags) != 3 {
			t.Errorf("asked for %+v", f)
		}
	}
	if err != nil || !slices.Equal(got, ids) || len(l.subnets) != 2 {
		t.Errorf("asked for %d IDs in %d calls, %v", len(got), len(l.subnets), err)
	}
}

// A listing ends, whatever EC2 says of the next page.
func TestListingsEnd(t *testing.T) {
	numbered := func(page int) string { return fmt.Sprint("number-", page) }
	same := func(int) string { return "same" }
	for _, tt := range []struct {
		name      string
		id, token func(page int) string
		pages     int
		says      string
	}{
		{"the same page for ever", numbered, same, 2, "nextToken"},
		{"two pages in turn", numbered, func(page int) string { return string(rune('a' + page%2)) }, 3, "nextToken"},
		{"ever new pages", numbered, numbered, pace.MaxPages, "pages"},
		{"the same subnet for ever", same, numbered, 2, "subnetSet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lists{id: tt.id, token: tt.token}
			_, err := pace.Cloud(l, pace.Options{}).Subnets(t.Context(), cloud.SubnetFilter{})
			if cloud.ClassOf(err) != cloud.Transient || !strings.Contains(err.Error(), tt.says) || l.pages != tt.pages {
				t.Errorf("%d pages, %v; want %d and a transient error that says %q", l.pages, err, tt.pages, tt.says)
			}
		})
	}
}
