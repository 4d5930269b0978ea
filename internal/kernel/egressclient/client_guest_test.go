//go:build guest

package egressclient

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

var networks = []string{"tcp", "udp"}

// Packets to a destination have the gateway's address, all others the pod's own.
func TestPackets(t *testing.T) {
	w := newWorld(t)
	before := w.dump()
	w.apply(setup(gateway(1)))
	for _, network := range networks {
		w.from(network, outside4, gateway4(1))
		w.from(network, outside6, gateway6(1))
		w.from(network, other4, client4)
		w.from(network, other6, client6)
		w.from(network, stranger4, client4)
		w.from(network, stranger6, client6)
	}
	w.in(clientNS, "ping -c1 -W3 %s; ping -c1 -W3 %s", outside4, outside6)
	w.apply(Setup{})
	if after := w.dump(); after != before {
		t.Errorf("state after the removal:\n%s\nwant, as before:\n%s", after, before)
	}
	for _, network := range networks {
		w.from(network, outside4, client4)
		w.from(network, outside6, client6)
	}
	if err := tunnel.Supported(); err != nil {
		t.Error(err)
	}
}

// Connections are spread over the gateways, also those of one client to one destination. Each keeps its gateway while
// that gateway terminates and others are added and removed.
func TestSpreadAndPinning(t *testing.T) {
	w := newWorld(t)
	w.apply(setup(gateway(1), gateway(2)))
	type long struct {
		talk func() netip.Addr
		from netip.Addr
	}
	var longs []long
	for _, network := range networks {
		for _, to := range outsides {
			if seen := w.spread(network, to, 24); len(seen) != 2 {
				t.Errorf("%s to %s: sources of connections = %v, want two gateways", network, to, seen)
			}
			for range 6 {
				c := w.connect(network, to)
				longs = append(longs, long{func() netip.Addr { return w.talk(c) }, w.talk(c)})
			}
		}
	}
	again := func(when string) {
		t.Helper()
		for _, l := range longs {
			if now := l.talk(); now != l.from {
				t.Errorf("%s: source of an open connection changed from %s to %s", when, l.from, now)
			}
		}
	}
	again("at first")
	w.apply(setup(gateway(1), gateway(2), gateway(3)))
	again("with a third gateway")
	for _, to := range outsides {
		if seen := w.spread("tcp", to, 36); len(seen) != 3 {
			t.Errorf("to %s: sources of connections = %v, want three gateways", to, seen)
		}
	}
	w.apply(setup(ending(1), gateway(2), gateway(3)))
	again("while the first terminates")
	for _, to := range outsides {
		if seen := w.spread("tcp", to, 24); len(seen) != 2 || seen[gateway4(1)]+seen[gateway6(1)] != 0 {
			t.Errorf("to %s: sources of connections = %v, want gateways 2 and 3", to, seen)
		}
	}
	s := setup(ending(1), ending(2), gateway(3))
	s.Egresses[0].Destinations = append(s.Egresses[0].Destinations, nets("192.0.2.0/24", "2001:db8:10::/64")...)
	s.Egresses[0].SourcePortAuto = true
	w.apply(s)
	again("with more destinations and another source port")
	w.apply(setup(ending(1), ending(2)))
	again("while all terminate")
	for _, to := range outsides {
		begin := time.Now()
		if _, err := w.ask("tcp", to, 5*time.Second); err == nil || time.Since(begin) > time.Second {
			t.Errorf("new connection while all gateways terminate: error %v after %s, want an immediate error", err, time.Since(begin))
		}
	}
}

// Without a gateway a destination is immediately unreachable, and never reached by another route.
func TestNoGateway(t *testing.T) {
	w := newWorld(t)
	w.apply(setup(gateway(1)))
	w.from("tcp", outside4, gateway4(1))
	w.kill(1)
	w.apply(setup())
	for _, network := range networks {
		for _, to := range outsides {
			begin := time.Now()
			got, err := w.ask(network, to, 3*time.Second)
			if err == nil || time.Since(begin) > time.Second {
				t.Errorf("%s to %s without a gateway: source %s, error %v after %s, want an immediate error", network, to, got, err, time.Since(begin))
			}
		}
	}
	w.apply(setup(gateway(2)))
	for _, network := range networks {
		w.from(network, outside4, gateway4(2))
		w.from(network, outside6, gateway6(2))
	}
}

// BenchmarkApply sets up an Egress with two gateways for both families, applies it again, changes a gateway, checks,
// and removes everything.
func BenchmarkApply(b *testing.B) {
	w := newWorld(b)
	with, other := setup(gateway(1), gateway(2)), setup(gateway(1), gateway(3))
	run := func(name string, before, timed func()) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				before()
				b.StartTimer()
				timed()
			}
		})
	}
	to := func(s Setup) func() {
		return func() {
			_, err := w.steps(s, nil)
			w.must(err)
		}
	}
	run("new", to(Setup{}), to(with))
	run("no difference", to(with), to(with))
	run("one gateway replaced", to(with), to(other))
	run("check", to(with), func() { w.must(Check(b.Context(), ns.Path(clientNS), with)) })
	run("removed", to(with), to(Setup{}))
	run("namespace with a link, for comparison", func() {}, w.client)
}
