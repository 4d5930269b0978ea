package eni

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
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
			cfg := &Config{Settings: tt.settings, Shared: NewShared(nil, nil, nil)}
			p := placement{cfg: cfg, view: newView(time.Minute), configured: since}
			p.view.enis["eni-0"] = newKnown(facts{ID: "eni-0", Groups: []string{"sg-0"}, Attachment: &cloud.Attachment{DeviceIndex: 0}})
			k := newKnown(facts{ID: "eni-1", Groups: tt.groups, createdTag: tt.made, Attachment: &cloud.Attachment{DeviceIndex: 1}})
			if got := p.wanted().differs(k); got != tt.want {
				t.Errorf("outdated: %v, want %v", got, tt.want)
			}
		})
	}
}
