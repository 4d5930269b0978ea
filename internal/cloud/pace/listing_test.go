package pace_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// lists answers listings: each ENI filter with the number of its pairs, and
// subnets with one page over and over.
type lists struct {
	pace.Calls
	pairs, pages int
}

func (l *lists) ENIPage(_ context.Context, f cloud.ENIFilter, _ string) ([]cloud.ENI, string, error) {
	l.pairs += len(f.IDs) * len(f.InstanceIDs)
	return nil, "", nil
}

func (l *lists) SubnetPage(context.Context, cloud.SubnetFilter, string) ([]cloud.Subnet, string, error) {
	l.pages++
	return []cloud.Subnet{{ID: "subnet-1"}}, fmt.Sprint("token-", l.pages), nil
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

// A listing that repeats itself ends at the first repetition.
func TestRepeatedPagesEndAListing(t *testing.T) {
	l := &lists{}
	_, err := pace.Cloud(l, pace.Options{}).Subnets(t.Context(), cloud.SubnetFilter{})
	if cloud.ClassOf(err) != cloud.Transient || l.pages != 2 {
		t.Errorf("%d pages, %v; want the second refused as Transient", l.pages, err)
	}
}
