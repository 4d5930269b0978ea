package daemon

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/attachment"
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

// spared is a data path that notes which links a repair leaves alone, by what records there are
// once it has looked.
type spared struct {
	arpless
	look  func()
	pods  []datapath.Pod
	links []string
}

func (s *spared) Repair(_ context.Context, pods []datapath.Pod, spare func() []string, _ func(int) bool) ([]string, error) {
	s.look()
	s.pods, s.links = pods, spare()
	return nil, nil
}

func (s *spared) ForwardPolicy(context.Context) ([]datapath.Finding, error) { return nil, nil }

// A repair leaves alone the links of NICs that the node routes to, also of one whose ADD begins
// beside it; all others are leases' or nobody's.
func TestRepairSparesLinksOfNICs(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.assemble()
	put := func(container string, state attachment.State, lease attachment.Lease, nics ...attachment.NIC) {
		rec := recordOf(container, lease)
		rec.State, rec.NICs = state, nics
		must(t, r.Store.Put(rec))
	}
	put("a", attachment.Ready, attachment.Lease{}, testBranch("p-a"))
	put("b", attachment.Pending, attachment.Lease{}, testBranch("p-b"))
	put("c", attachment.Releasing, attachment.Lease{}, testNIC("eth1", "p-1"), testBranch("p-c"))
	put("d", attachment.Ready, attachment.Lease{IPv4: n.addrs[0]}, testNIC("eth1", "p-d"))
	put("e", attachment.Ready, attachment.Lease{}, testNIC("eth0", "p-e"))
	data := &spared{look: func() { put("f", attachment.Pending, attachment.Lease{}, testBranch("p-f")) }}
	log := slog.New(slog.DiscardHandler)
	(&repairer{
		upkeep: data, store: r.Store, source: r.source, quarantine: r.quarantine, repairs: r.Metrics.repairs, clock: n.clock, log: log,
		conditions: newConditions(n.clock, log),
	}).repair(t.Context())
	var want []string
	for _, container := range []string{"a", "b", "c", "f"} {
		want = append(want, hostLinkName(keyFor(container)))
	}
	slices.Sort(want)
	if slices.Sort(data.links); !slices.Equal(data.links, want) {
		t.Errorf("spared are %v, want %v", data.links, want)
	}
	if len(data.pods) != 1 || data.pods[0].HostIfName != hostLinkName(keyFor("d")) {
		t.Errorf("wanted are %+v", data.pods)
	}
}
