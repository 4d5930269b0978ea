package kubectl

import (
	"context"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/test/harness"
)

// movedObjects is an objectMover whose steps change what is named after them.
type movedObjects struct{}

func (movedObjects) Plan(context.Context) (p migrate.Plan, err error) { return p, nil }

func (movedObjects) Begin(context.Context) ([]string, error) { return []string{"begin"}, nil }

func (movedObjects) Returned(_ context.Context, node string) ([]string, error) {
	return []string{node + " returned"}, nil
}

func (movedObjects) Back(context.Context) ([]string, error) { return []string{"back"}, nil }

func (movedObjects) Finish(context.Context) ([]string, error) { return []string{"finish"}, nil }

func TestObjectsMoveWithTheirSteps(t *testing.T) {
	var told []string
	m := &migration{
		toolRunner: &toolRunner{from: former{objects: func(*migration) (objectMover, error) { return movedObjects{}, nil }}},
		tell:       func(node, what string) { told = append(told, node+": "+what) },
	}
	for _, a := range []rollout.Action{
		{Kind: rollout.Begin},
		{Kind: rollout.Confine},
		{Kind: rollout.Write, Node: "node-1", Record: rollout.Record{Direction: rollout.Rollback, Applied: true}},
		{Kind: rollout.SetLabel, Node: "node-1"},
		{Kind: rollout.Write, Node: "node-1"}, // the node is back
		{Kind: rollout.DeleteFormer},
	} {
		harness.OK(t, m.moveObjects(t.Context(), a))
	}
	if want := []string{": begin", "node-1: node-1 returned", ": finish"}; !slices.Equal(told, want) {
		t.Errorf("changes %q, want %q", told, want)
	}
}
