package daemon

import (
	"log/slog"
	"net"
	"strings"
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
		lost   string // what NICs hear of
	}{
		"an ENI's link came":        {datapath.Event{Kind: datapath.LinkAppeared, Link: "ens6"}, 1, false, "nothing"},
		"an ENI's link went":        {datapath.Event{Kind: datapath.LinkVanished, Link: "ens6", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, 1, false, "ens6 02:00:00:00:00:01"},
		"a pod's link went":         {datapath.Event{Kind: datapath.LinkVanished, Link: datapath.LinkPrefix + "c0ffee"}, 1, true, datapath.LinkPrefix + "c0ffee"},
		"a port's link went down":   {datapath.Event{Kind: datapath.StateLost, Link: "tapa2815656-76"}, 0, true, "tapa2815656-76"},
		"events were lost":          {datapath.Event{Kind: datapath.Resync}, 1, true, ""},
		"something else was undone": {datapath.Event{Kind: datapath.StateLost}, 0, true, ""},
	} {
		src, lost := sourcefake.New(clock.Real{}, 0), "nothing"
		r := &repairer{source: src, log: slog.New(slog.DiscardHandler), linkLost: func(name string, address net.HardwareAddr) { lost = strings.TrimSpace(name + " " + address.String()) }}
		if repair := r.disturbed(tc.event); repair != tc.repair || src.Kicks() != tc.kicked || lost != tc.lost {
			t.Errorf("%s: %d kicks, repair %v and %s lost, want %d, %v and %s", name, src.Kicks(), repair, lost, tc.kicked, tc.repair, tc.lost)
		}
	}
}
