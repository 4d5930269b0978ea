package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/sourcefake"
	"github.com/berthnet/berth/test/harness/check"
)

const period = 30 * time.Second

var four, six = netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")

func key(name string) attachment.Key {
	return attachment.Key{Network: "berth", ContainerID: name, IfName: "eth0"}
}

func request(name string) source.Request { return source.Request{Key: key(name)} }

// bed is a source of the given addresses with node-local IPv4 addresses.
type bed struct {
	*Source
	t     *testing.T
	of    *sourcefake.Source
	clock *clock.Fake
}

func newBed(t *testing.T, addrs ...netip.Addr) bed {
	clk := clock.NewFake(time.Unix(1700000000, 0))
	of := sourcefake.New(clk, period, addrs...)
	return bed{New(of, true, false, clk), t, of, clk}
}

func (b bed) acquire(name string) source.Lease {
	b.t.Helper()
	l, err := b.Acquire(b.t.Context(), request(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// many returns n IPv6 addresses.
func many(n int) (addrs []netip.Addr) {
	for i := range n {
		addrs = append(addrs, netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)))
	}
	return addrs
}

// dual leases an address of each family.
type dual struct{ source.Source }

func (dual) Acquire(context.Context, source.Request) (source.Lease, error) {
	return source.Lease{IPv4: four, IPv6: six}, nil
}

// Only a lease of one family has a node-local address of the other, if enabled.
func TestNodeLocalAddressOfTheOtherFamily(t *testing.T) {
	for name, tt := range map[string]struct {
		addr       netip.Addr
		ipv4, ipv6 bool
		both       bool
		of         netip.Prefix // expected network; zero: none
	}{
		"IPv6":                {addr: six, ipv4: true, of: Network4},
		"IPv6, off":           {addr: six, ipv6: true},
		"IPv4":                {addr: four, ipv6: true, of: Network6},
		"IPv4, off":           {addr: four, ipv4: true},
		"dual":                {both: true, ipv4: true, ipv6: true},
		"no lease, NICs only": {ipv4: true, ipv6: true},
	} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewFake(time.Unix(1700000000, 0))
			fake := sourcefake.New(clk, period, tt.addr)
			fake.Nothing = !tt.addr.IsValid()
			var of source.Source = fake
			if tt.both {
				of = dual{fake}
			}
			s := New(of, tt.ipv4, tt.ipv6, clk)
			first := check.Must(s.Acquire(t.Context(), request("a")))(t)
			if got := first.NodeLocal; got.IsValid() != tt.of.IsValid() || got.IsValid() && !tt.of.Contains(got) {
				t.Errorf("node-local address = %s, want one of %s", got, tt.of)
			}
			if again, err := s.Acquire(t.Context(), request("a")); err != nil || again != first {
				t.Errorf("repeated Acquire() = %+v, %v; want %+v", again, err, first)
			}
		})
	}
}

// No other pod gets an address while a pod holds it or while it cools, even if these states are restored
// from records after a restart.
func TestNodeLocalAddressesCool(t *testing.T) {
	b := newBed(t, many(6)...)
	released, kept, cancelled := b.acquire("released"), b.acquire("kept"), b.acquire("cancelled")
	b.Release(key("released"))
	b.Cancel(key("cancelled"))
	check.Equal(t, b.acquire("next").NodeLocal, cancelled.NodeLocal, "the address reassigned after a cancel")

	after := newBed(t, many(1200)...)
	for name, l := range map[string]source.Lease{"kept": kept, "next": cancelled} {
		check.OK(t, after.Restore(request(name), l))
	}
	after.RestoreCooling(released.NodeLocal, after.clock.Now().Add(-period/2))
	if err := after.Restore(request("other"), source.Lease{IPv6: many(5)[4], NodeLocal: kept.NodeLocal}); err == nil {
		t.Error("Restore() accepted an address that another pod holds")
	} else if _, held := after.of.Holder(many(5)[4]); !held {
		t.Error("the other address of the rejected lease is not held")
	}
	had := map[netip.Addr]bool{kept.NodeLocal: true, cancelled.NodeLocal: true, released.NodeLocal: true}
	for i := range 1021 {
		l := after.acquire(fmt.Sprint(i))
		if had[l.NodeLocal] {
			t.Fatalf("%s was assigned although it is held or cooling", l.NodeLocal)
		}
		had[l.NodeLocal] = true
	}

	// All 1,024 addresses are held except the cooling one.
	cancels := after.of.Cancels()
	var full *source.Exhausted
	if _, err := after.Acquire(t.Context(), request("late")); !errors.As(err, &full) || full.Reason != ReasonFull {
		t.Errorf("Acquire() without a free node-local address = %v, want reason %s", err, ReasonFull)
	}
	check.Equal(t, after.of.Cancels(), cancels+1, "cancelled ADDs")
	after.clock.Advance(period/2 + time.Second)
	check.Equal(t, after.acquire("late").NodeLocal, released.NodeLocal, "the address of the late pod")
}

// An address that another CNI plugin's pod has is not assigned.
func TestNodeLocalAddressOfAnotherPlugin(t *testing.T) {
	first := newBed(t, many(1)...).acquire("a").NodeLocal
	b := newBed(t, many(1)...)
	if kept := b.Withhold([]netip.Addr{first}); len(kept) != 1 || kept[0] != first {
		t.Errorf("Withhold(%s) = %s", first, kept)
	}
	if l := b.acquire("a"); l.NodeLocal == first || !Network4.Contains(l.NodeLocal) {
		t.Errorf("node-local address %s, want one in %s other than %s", l.NodeLocal, Network4, first)
	}
}

// Of a damaged record only the addresses are known.
func TestRestoreDamagedRecord(t *testing.T) {
	b := newBed(t, six)
	local := Network4.Addr()
	check.OK(t, b.Restore(request("damaged"), source.Lease{IPv4: local, IPv6: six}))
	if err := b.Restore(request("rest"), source.Lease{IPv4: local.Next()}); err != nil {
		t.Errorf("Restore() with only a node-local address = %v, want nil", err)
	}
	b.of.Supply(many(1)...)
	if l := b.acquire("new"); l.NodeLocal == local || l.NodeLocal == local.Next() {
		t.Errorf("%s was assigned although it is held", l.NodeLocal)
	}
	if _, held := b.of.Holder(local); held {
		t.Error("the wrapped source holds a node-local address")
	}
}

func TestNodeLocalMetrics(t *testing.T) {
	b := newBed(t, many(3)...)
	b.acquire("a")
	b.acquire("b")
	b.Release(key("b"))
	got := map[string]float64{}
	for _, m := range b.Snapshot().Detail.Metrics() {
		if m.Desc().String() != famAddresses.Desc().String() {
			continue
		}
		var d dto.Metric
		check.OK(t, m.Write(&d))
		got[d.GetLabel()[0].GetValue()+" "+d.GetLabel()[1].GetValue()] = d.GetGauge().GetValue()
	}
	want := map[string]float64{"ipv4 used": 1, "ipv4 cooling": 1, "ipv6 used": 0, "ipv6 cooling": 0}
	check.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "metrics %v", got)
}
