package placement

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Which security groups make an ENI outdated: those of the settings or else the primary
// ENI's count, in any order. An ENI that was made with the same settings, and has others, got
// them of somebody else, as the next one would.
func TestOutdatedByGroups(t *testing.T) {
	const before, after = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"
	since := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		settings Settings
		made     string
		groups   []string
		want     bool
	}{
		{"as configured, in another order", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-2", "sg-1"}, false},
		{"one too few", Settings{Groups: []string{"sg-1", "sg-2"}}, before, []string{"sg-1"}, true},
		{"as the primary, where none are configured", Settings{}, before, []string{"sg-0"}, false},
		{"those that were configured, and are no more", Settings{}, before, []string{"sg-1"}, true},
		{"found by tags, which were not asked for yet", Settings{GroupTags: map[string]string{"a": "b"}}, before, []string{"sg-1"}, false},
		{"not known", Settings{Groups: []string{"sg-1"}}, before, nil, false},
		{"changed by another since it was made", Settings{Groups: []string{"sg-1"}}, after, []string{"sg-9"}, false},
		{"made nobody knows when", Settings{Groups: []string{"sg-1"}}, "", []string{"sg-9"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := clock.NewFake(since)
			p := NewSelector(NewCatalog(nil, now), tt.settings, someENIs{{Groups: []string{"sg-0"}}}, false, now, nil)
			created, _ := time.Parse(time.RFC3339, tt.made)
			if got := p.Desired().Outdated(ENI{Groups: tt.groups, Created: created}); got != tt.want {
				t.Errorf("outdated: %v, want %v", got, tt.want)
			}
		})
	}
}

// someENIs are a node's, the primary first.
type someENIs []ENI

func (s someENIs) Primary() (ENI, bool) { return s[0], true }
func (s someENIs) Each(do func(ENI)) {
	for _, e := range s {
		do(e)
	}
}
