package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// hearing is a part that hears of links.
type hearing struct {
	part.Part
	changed *string
}

func (h hearing) LinkChanged(name string, address net.HardwareAddr) {
	*h.changed = strings.TrimSpace(name + " " + address.String())
}

// The source gets an event for every link that appears or vanishes, which may be that of an ENI.
func TestLinkEventsKickTheSource(t *testing.T) {
	for name, tc := range map[string]struct {
		event   datapath.Event
		kicked  int
		repair  bool
		changed string // what NICs hear of
	}{
		"an ENI's link came":        {datapath.Event{Kind: datapath.LinkAppeared, Link: "ens6"}, 1, false, "ens6"},
		"an ENI's link went":        {datapath.Event{Kind: datapath.LinkVanished, Link: "ens6", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, 1, false, "ens6 02:00:00:00:00:01"},
		"a pod's link went":         {datapath.Event{Kind: datapath.LinkVanished, Link: datapath.LinkPrefix + "c0ffee"}, 1, true, datapath.LinkPrefix + "c0ffee"},
		"a port's link went down":   {datapath.Event{Kind: datapath.StateLost, Link: "tapa2815656-76"}, 0, true, "tapa2815656-76"},
		"a port's link changed":     {datapath.Event{Kind: datapath.LinkAppeared, Link: "vlana2815656-76"}, 1, false, "vlana2815656-76"},
		"a branch's route went":     {datapath.Event{Kind: datapath.PortStateLost, Link: "btha2815656-76"}, 0, false, "btha2815656-76"},
		"events were lost":          {datapath.Event{Kind: datapath.Resync}, 1, true, ""},
		"something else was undone": {datapath.Event{Kind: datapath.StateLost}, 0, true, "nothing"},
		"a branch's rule went":      {datapath.Event{Kind: datapath.PortStateLost}, 0, false, ""},
	} {
		src, changed := sourcefake.New(clock.Real{}, 0), "nothing"
		r := &repairer{source: src, log: slog.New(slog.DiscardHandler), parts: parts{hearing{changed: &changed}}}
		if repair := r.disturbed(tc.event); repair != tc.repair || src.Kicks() != tc.kicked || changed != tc.changed {
			t.Errorf("%s: %d kicks, repair %v and %s changed, want %d, %v and %s", name, src.Kicks(), repair, changed, tc.kicked, tc.repair, tc.changed)
		}
	}
}

// refusingKernel fails the first repairs, and notes the time of each. Its first watch fails, too.
type refusingKernel struct {
	Upkeep
	start   time.Time
	fails   int
	at      []time.Duration
	watches int
	events  chan datapath.Event
}

func (k *refusingKernel) Watch(context.Context) (<-chan datapath.Event, error) {
	if k.watches++; k.watches == 1 {
		return nil, errors.New("no buffer space")
	}
	return k.events, nil
}

func (k *refusingKernel) Repair(context.Context, []datapath.Pod, []string, func(int) bool) ([]string, error) {
	k.at = append(k.at, time.Since(k.start))
	if len(k.at) <= k.fails {
		return nil, errors.New("device or resource busy")
	}
	return nil, nil
}

func (*refusingKernel) ForwardPolicy(context.Context) ([]datapath.Finding, error) { return nil, nil }

func (*refusingKernel) ARPFiltered() bool { return true }

func (*refusingKernel) NodeAddresses(context.Context) ([]datapath.NodeAddress, error) {
	return nil, nil
}

// A repair that fails is retried soon, and then with growing delays. Events that need no repair do not
// delay the next one.
func TestFailedRepairsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &refusingKernel{start: time.Now(), fails: 4, events: make(chan datapath.Event)}
		store, _, err := attachment.Open(t.TempDir(), attachment.Node{InstanceID: "i-1", BootID: "b-1"}, slog.New(slog.DiscardHandler))
		must(t, err)
		r := &repairer{
			upkeep: k, store: store, source: sourcefake.New(clock.Real{}, 0), conditions: newConditions(clock.Real{}, slog.New(slog.DiscardHandler)),
			quarantine: &quarantine{}, repairs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "repairs"}, nil),
			interval: time.Minute, clock: clock.Real{}, log: slog.New(slog.DiscardHandler),
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.run(ctx); close(done) }()
		send := func(after time.Duration, e datapath.Event) {
			time.Sleep(after - time.Since(k.start)) //nolint:forbidigo // virtual time
			k.events <- e
		}
		for s := 31 * time.Second; s < 89*time.Second; s += 2 * time.Second {
			send(s, datapath.Event{Kind: datapath.LinkAppeared, Link: "ens6"})
		}
		send(100*time.Second, datapath.Event{Kind: datapath.StateLost})
		time.Sleep(time.Minute + time.Second) //nolint:forbidigo // virtual time
		end()
		<-done
		want := []time.Duration{
			0, 2 * time.Second, 6 * time.Second, 14 * time.Second, 30 * time.Second, 90 * time.Second,
			100*time.Second + repairDebounce, 160*time.Second + repairDebounce,
		}
		if !slices.Equal(k.at, want) {
			t.Errorf("repairs at %v, want %v", k.at, want)
		}
	})
}

// arpless is a kernel that may lack nftables' family arp.
type arpless struct {
	Upkeep
	lacks bool
}

func (a *arpless) ARPFiltered() bool { return !a.lacks }

// A kernel that cannot drop pods' ARP requests is reported once in log and conditions, and so is one
// that can.
func TestKernelWithoutARPTablesIsReported(t *testing.T) {
	var log bytes.Buffer
	kernel := &arpless{lacks: true}
	d := &repairer{upkeep: kernel, conditions: newConditions(clock.Real{}, slog.New(slog.NewTextHandler(&log, nil)))}
	for range 3 {
		d.lookAtARP()
	}
	d.conditions.want(t, ConditionARP, false, "CONFIG_NF_TABLES_ARP")
	if n := strings.Count(log.String(), "CONFIG_NF_TABLES_ARP"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
	kernel.lacks = false // its module was loaded
	d.lookAtARP()
	d.conditions.want(t, ConditionARP, true, "")
}

// interfaces is a part whose interfaces other software removed, or one that follows them.
type interfaces struct {
	part.None
	checks func()
}

func (i interfaces) About() part.About { return part.About{Name: "interfaces", ChecksAtOnce: 1} }

func (i interfaces) Checks(attachment.Record) (bool, string) { i.checks(); return true, "" }

func (i interfaces) Check(context.Context, attachment.Record) error { return errors.New("removed") }

// Parts that follow interfaces are notified when the container's lock is free: else they would find the attachment
// busy, and look again only after a while.
func TestFollowersFindTheLockFree(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	a, notified := r.attachments, 0
	rec := a.store.Records()[0]
	about := part.About{Name: "interfaces", ChecksAtOnce: 1}
	followers := keepers{{touched: retry.NewSignal(), keys: map[attachment.Key]bool{}, part: interfaces{checks: func() {
		if unlock, ok := a.locks.try(rec.Key.ContainerID); ok {
			unlock()
			notified++
		}
	}}}}
	k := &keeper{part: interfaces{checks: func() {}}, about: about, attachments: a, followers: followers, clock: n.clock, log: r.Log}
	if all, failed := k.check(t.Context(), []attachment.Record{rec}); !all || failed || notified != 1 {
		t.Errorf("set up again: %t, failed %t, notified %d times", all, failed, notified)
	}
	a.followers = followers
	if must(t, a.addAgainLater(t.Context(), rec)); notified != 2 {
		t.Errorf("notified %d times", notified)
	}
}
