//go:build guest

package egressclient

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// coil gives the client the state of a client of Coil whose only gateway is gateway 3.
func (w *world) coil() {
	w.t.Helper()
	w.in(clientNS, `
ip link add fou-dummy type dummy
ip fou add port 5555 ipproto 4
ip fou add port 5555 ipproto 41 -6
ip link add fou4_0a010302 mtu 1472 type ipip remote 10.1.3.2 local 10.1.0.2 ttl 225 encap fou encap-sport 5555 encap-dport 5555
ip link add fou6_00000003 mtu 1444 type ip6tnl remote fd01:0:3::2 local fd01::2 hoplimit 225 encaplimit none encap fou encap-sport 5555 encap-dport 5555 encap-udp6-csum
ip link add coil_ipip4 type ipip external
ip link add coil_ipip6 type ip6tnl external
for l in fou4_0a010302 fou6_00000003 coil_ipip4 coil_ipip6; do ip link set $l up; done
ip rule add pref 1800 to 169.254.0.0/16 lookup main
ip rule add pref 1900 lookup 117
ip rule add pref 2000 to 10.0.0.0/8 lookup main
ip rule add pref 2100 lookup 118
ip -6 rule add pref 1800 to fe80::/10 lookup main
ip -6 rule add pref 1900 lookup 117
ip -6 rule add pref 2000 to fc00::/7 lookup main
ip -6 rule add pref 2100 lookup 118
ip route add default dev fou4_0a010302 table 118 proto 30
ip -6 route add default dev fou6_00000003 table 118 proto 30
`)
}

// adopted is the setup of a client that was Coil's.
func adopted(gateways ...Gateway) Setup {
	s := setup(gateways...)
	s.Adopted, s.Egresses[0].Destinations = true, nets("0.0.0.0/0", "::/0")
	if len(gateways) == 0 {
		s.Egresses = nil
	}
	return s
}

// A client of Coil gets Berth's tunnels in place of Coil's, and back. Whenever that fails, its packets leave through a gateway
// of one of both or not at all, and the next Apply completes it. What is put back is as it was.
func TestClientsOfCoil(t *testing.T) {
	w := newWorld(t)
	w.coil()
	before := w.dump()
	through := func(w *world, gateway int) {
		w.t.Helper()
		w.from("tcp", outside4, gateway4(gateway))
		w.from("tcp", other6, gateway6(gateway))
	}
	through(w, 3)
	talk := w.connect("tcp", outside4)
	w.talk(talk)
	w.apply(adopted())
	if now := w.dump(); now != before {
		t.Errorf("state without an Egress of Berth:\n%s\nwant Coil's:\n%s", now, before)
	}
	there, err := w.steps(adopted(gateway(1)), nil)
	w.must(err)
	w.apply(adopted(gateway(1)))
	through(w, 1)
	back, err := w.steps(adopted(), nil)
	w.must(err)
	if now := w.dump(); now != before {
		t.Errorf("state after Coil's tunnels were restored:\n%s\nwant:\n%s", now, before)
	}
	through(w, 3)
	w.talk(talk) // gateway 3 still knows the connection
	t.Logf("there: %s; back: %s", strings.Join(there, "; "), strings.Join(back, "; "))

	for _, way := range []struct {
		name     string
		to, from Setup
		steps    int
		gateway  int
	}{{"there", adopted(gateway(1)), adopted(), len(there), 1}, {"back", adopted(), adopted(gateway(1)), len(back), 3}} {
		t.Run(way.name, func(t *testing.T) {
			w := &world{t}
			first, stride := sampled(t, 4)
			for i := first; i < way.steps; i += stride {
				_, err := w.steps(way.from, nil)
				w.must(err)
				done, stop := 0, errors.New("ended")
				_, err = w.steps(way.to, func(string) error {
					if done++; done > i {
						return stop
					}
					return nil
				})
				if err == nil && done <= i { // the kernel had removed some routes with the devices before their own steps
					continue
				}
				if !errors.Is(err, stop) {
					t.Fatalf("step %d: Apply() error = %v, want the injected one", i, err)
				}
				for _, to := range outsides {
					if seen, err := w.ask("udp", to, time.Second); err == nil && slices.Contains([]netip.Addr{client4, client6}, seen) {
						t.Errorf("step %d: a packet to %s bypassed the gateways", i, to)
					}
				}
				w.apply(way.to)
			}
			through(w, way.gateway)
		})
	}
	w.apply(adopted())
	if now := w.dump(); now != before {
		t.Errorf("state at the end:\n%s\nwant:\n%s", now, before)
	}
	k, err := open(ns.Path(clientNS))
	w.must(err)
	defer k.close()
	if has, inForce, err := Former(k.at.NL); err != nil || !has || !inForce {
		t.Errorf("Former() = %t, %t, %v; want Coil's tunnels in force", has, inForce, err)
	}
}
