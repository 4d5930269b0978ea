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

// lists answers listings. For ENIs it counts the combinations of values that the filters accept and the most
// values in a filter. Each page of subnets has one subnet.
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

// A filter with more values than a call accepts is split into calls that together cover all combinations.
func TestLargeFiltersAreSplit(t *testing.T) {
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
		"none":                   {cloud.ENIFilter{}, 1, 1, 0},
		"tag without values":     {cloud.ENIFilter{Tagged: map[string][]string{"a": {}}, IDs: ids[:1]}, 1, 1, 1},
		"maximum":                {cloud.ENIFilter{IDs: ids[:most]}, most, 1, most},
		"one over":               {cloud.ENIFilter{IDs: ids[:most], VPCID: "v"}, most, 2, most},
		"IDs":                    {cloud.ENIFilter{IDs: ids}, 450, 3, most},
		"tag values":             {cloud.ENIFilter{Tagged: map[string][]string{"a": ids}, Tags: map[string]string{"b": "c", "d": "e"}, Types: []cloud.InterfaceType{"x", "y"}, InstanceID: "i"}, 450, 3, most},
		"two small lists":        {cloud.ENIFilter{IDs: ids[:50], InstanceIDs: ids[:150]}, 50 * 150, 1, most},
		"two large lists":        {cloud.ENIFilter{IDs: ids, InstanceIDs: ids}, 450 * 450, 25, most},
		"two tags":               {cloud.ENIFilter{Tagged: map[string][]string{"a": ids, "b": ids[:90]}, Status: "s"}, 450 * 90, 5, 190},
		"four lists":             {cloud.ENIFilter{Tagged: map[string][]string{"a": ids, "b": ids[:2]}, IDs: ids[:3], InstanceIDs: ids[:4]}, 450 * 2 * 3 * 4, 9, 59},
		"too many single values": {cloud.ENIFilter{Tags: tags(most), IDs: ids[:2]}, 2, 2, most + 1}, // left for EC2 to reject
		"only single values":     {cloud.ENIFilter{Tags: tags(most + 1)}, 1, 1, most + 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lists{}
			_, err := pace.Cloud(l, pace.Options{}).ENIs(t.Context(), tt.f)
			if err != nil || l.pairs != tt.combinations || l.pages != tt.calls || l.most != tt.values {
				t.Errorf("%d combinations in %d calls with up to %d values, error %v; want %d in %d with up to %d",
					l.pairs, l.pages, l.most, err, tt.combinations, tt.calls, tt.values)
			}
			if d := len(tt.f.Tagged["a"]); d > 0 && d != 450 {
				t.Errorf("caller's filter was modified: it has %d values", d)
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

// Subnet filters are split likewise.
func TestLargeSubnetFiltersAreSplit(t *testing.T) {
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
			t.Errorf("request with the filter %+v, want at most 195 IDs and all other conditions", f)
		}
	}
	if err != nil || !slices.Equal(got, ids) || len(l.subnets) != 2 {
		t.Errorf("listing returned %d IDs after %d calls, error %v, want all IDs after 2", len(got), len(l.subnets), err)
	}
}

// A listing ends even if EC2 returns next-page tokens forever.
func TestListingsEnd(t *testing.T) {
	numbered := func(page int) string { return fmt.Sprint("number-", page) }
	same := func(int) string { return "same" }
	for _, tt := range []struct {
		name      string
		id, token func(page int) string
		pages     int
		says      string
	}{
		{"same page forever", numbered, same, 2, "nextToken"},
		{"two alternating pages", numbered, func(page int) string { return string(rune('a' + page%2)) }, 3, "nextToken"},
		{"endless pages", numbered, numbered, pace.MaxPages, "pages"},
		{"same subnet forever", same, numbered, 2, "subnetSet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lists{id: tt.id, token: tt.token}
			_, err := pace.Cloud(l, pace.Options{}).Subnets(t.Context(), cloud.SubnetFilter{})
			if cloud.ClassOf(err) != cloud.Transient || !strings.Contains(err.Error(), tt.says) || l.pages != tt.pages {
				t.Errorf("%d pages, error %v, want %d pages and a transient error containing %q", l.pages, err, tt.pages, tt.says)
			}
		})
	}
}
