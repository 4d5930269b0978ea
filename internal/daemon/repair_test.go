package daemon

import (
	"log/slog"
	"testing"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// The source hears of every link that came or went, which may be that of an ENI.
func TestLinksThatComeOrGoKickTheSource(t *testing.T) {
	for name, tc := range map[string]struct {
		event  datapath.Event
		kicked int
		repair bool
	}{
		"an ENI's link came":        {datapath.Event{Kind: datapath.LinkAppeared, Link: "ens6"}, 1, false},
		"an ENI's link went":        {datapath.Event{Kind: datapath.LinkVanished, Link: "ens6"}, 1, false},
		"a pod's link went":         {datapath.Event{Kind: datapath.LinkVanished, Link: datapath.LinkPrefix + "c0ffee"}, 1, true},
		"events were lost":          {datapath.Event{Kind: datapath.Resync}, 1, true},
		"something else was undone": {datapath.Event{Kind: datapath.StateLost}, 0, true},
	} {
		src := sourcefake.New(clock.Real{}, 0)
		r := &repairer{source: src, log: slog.New(slog.DiscardHandler)}
		if repair := r.disturbed(tc.event); repair != tc.repair || src.Kicks() != tc.kicked {
			t.Errorf("%s: %d kicks and repair %v, want %d and %v", name, src.Kicks(), repair, tc.kicked, tc.repair)
		}
	}
}
