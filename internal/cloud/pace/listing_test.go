package pace_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// lists answers listings: each ENI filter with the number of its pairs, and
// subnets with one page after the other, of one subnet each.
type lists struct {
	pace.Calls
	id, token    func(page int) string
	pairs, pages int
}

func (l *lists) ENIPage(_ context.Context, f cloud.ENIFilter, _ string) ([]cloud.ENI, string, error) {
	l.pairs += len(f.IDs) * len(f.InstanceIDs)
	return nil, "", nil
}

func (l *lists) SubnetPage(context.Context, cloud.SubnetFilter, string) ([]cloud.Subnet, string, error) {
	l.pages++
	return []cloud.Subnet{{ID: l.id(l.pages)}}, l.token(l.pages), nil
}

// A filter with more values than a call takes, of two kinds, asks for all pairs.
func TestFiltersOfTwoKindsAreAskedForWhole(t *testing.T) {
	ids := make([]string, 450)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	l := &lists{}
	_, err := pace.Cloud(l, pace.Options{}).ENIs(t.Context(), cloud.ENIFilter{IDs: ids, InstanceIDs: ids})
	if want := len(ids) * len(ids); err != nil || l.pairs != want {
		t.Errorf("asked for %d pairs, %v; want %d", l.pairs, err, want)
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
