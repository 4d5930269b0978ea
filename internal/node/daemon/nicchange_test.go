package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// settles waits until the only attachment has these ports, all plugged.
func (r *running) settles(t *testing.T, ports ...string) attachment.Record {
	t.Helper()
	var rec attachment.Record
	waitFor(t, func() bool {
		all := r.Store.Records()
		if len(all) != 1 {
			return false
		}
		rec = all[0]
		var have []string
		for _, n := range rec.NICs {
			if n.State == attachment.Plugged {
				have = append(have, n.Port)
			}
		}
		slices.Sort(have)
		return len(have) == len(rec.NICs) && slices.Equal(have, ports)
	})
	return rec
}

// given sets the NICs that the pod should have now.
func (r *running) given(nics ...attachment.NIC) {
	r.nics.bind("pod-a", nics...)
	r.nics.news.Set()
}

// checks is a CHECK with the prevResult of the ADD.
func (r *running) checks(t *testing.T, links ...*rpc.Link) error {
	t.Helper()
	_, err := r.client.Check(within(t), &rpc.CheckRequest{Attachment: addOf("a", "").GetAttachment(), Netns: "/run/netns/a", Links: links})
	return err
}

// A running pod gets and loses NICs: CHECK with the first prevResult works, as do a repeated ADD and
// DEL.
func TestNICsOfARunningPod(t *testing.T) {
	for name, pod := range portPods {
		t.Run(name, func(t *testing.T) {
			n := newPortNode(t, pod.addrs...)
			own := pod.nics[:1]
			r := n.startPorts(own)
			reply := mustAdd(t, r, "a", n.newNetns("a"))
			stop := n.tick()
			r.given(own[0], testNIC("eth7", "p-7"), testNIC("eth8", "p-8"))
			rec := r.settles(t, "p-1", "p-7", "p-8")
			n.board.want(t, "p-1", "p-7", "p-8")
			if !rec.NICs[1].Later || rec.NICs[0].Later || rec.NICs[1].HostLink == "" {
				t.Errorf("recorded %+v", rec.NICs)
			}
			must(t, r.checks(t, reply.GetLinks()...))
			if again := mustAdd(t, r, "a", "/run/netns/a"); len(again.GetLinks()) != len(reply.GetLinks())+2 {
				t.Errorf("the same ADD again has %v", again)
			}

			r.given(own[0], testNIC("eth8", "p-8"))
			r.settles(t, "p-1", "p-8")
			n.board.want(t, "p-1", "p-8")
			must(t, r.checks(t, reply.GetLinks()...))
			// Under its name again, by another port: what the runtime may remember is not held
			// against it.
			other := testNIC("eth8", "p-9")
			other.Addresses[0].CIDR = netip.MustParsePrefix("192.168.9.9/24")
			r.given(own[0], other)
			r.settles(t, "p-1", "p-9")
			must(t, r.checks(t, &rpc.Link{Sandbox: &rpc.Interface{Name: "eth8"}, Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24"}}}))
			stop()
			mustDel(t, r, "a")
			n.board.want(t)
		})
	}
}

// New addresses of a port are changed in place.
func TestAddressesOfARunningPod(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.startPorts([]attachment.NIC{testNIC("eth1", "p-1")})
	mustAdd(t, r, "a", n.newNetns("a"))
	defer n.tick()()
	other := testNIC("eth1", "p-1")
	other.Addresses = []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.0.99/24")}}
	r.given(other)
	waitFor(t, func() bool {
		rec, _ := r.Store.Get(keyFor("a"))
		return rec.NICs[0].State == attachment.Plugged && rec.NICs[0].Addresses[0].CIDR.Addr().String() == "192.168.0.99"
	})
	if n.board.count("Unplug") != 0 {
		t.Error("it was unplugged for that")
	}
	n.board.want(t, "p-1")
	must(t, r.checks(t, &rpc.Link{Sandbox: &rpc.Interface{Name: "eth1"}, Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24"}}}))
}

// A NIC that cannot be plugged is retried with growing delays, and at once if something else is
// desired. It delays neither other NICs nor the runtime's calls.
func TestNICThatCannotBePlugged(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.startPorts([]attachment.NIC{testNIC("eth1", "p-1")})
	mustAdd(t, r, "a", n.newNetns("a"))
	n.board.set("Plug", plug.ErrInterfaceExists)
	before := n.board.count("Plug")
	r.given(testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
	waitFor(t, func() bool { n.clock.Advance(100 * time.Millisecond); return n.board.count("Plug") > before+3 })
	if rec, _ := r.Store.Get(keyFor("a")); len(rec.NICs) != 2 || rec.NICs[1].State != attachment.Plugging {
		t.Errorf("recorded %+v", rec.NICs)
	}
	must(t, r.checks(t)) // the runtime has not heard of what is not plugged yet
	// Again and again: the timer of the last attempt may begin to run only now.
	waitFor(t, func() bool { n.clock.Advance(time.Hour); return n.board.count("Plug") > before+4 })
	tried := n.board.count("Plug")
	r.nics.news.Set() // of something else
	for range 20 {
		n.clock.Advance(changeMost / 200)
		r.nics.news.Set()
	}
	if got := n.board.count("Plug") - tried; got > 1 {
		t.Errorf("tried %d times more though nothing had changed", got)
	}
	n.board.set("Plug", nil)
	r.given(testNIC("eth1", "p-1"), testNIC("eth3", "p-3"))
	stop := n.tick()
	r.settles(t, "p-1", "p-3")
	stop()
	n.board.want(t, "p-1", "p-3")
}

// CHECK, DEL and other changes do not wait for a NIC that carries no packets yet.
func TestNICThatCarriesNoPackets(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.startPorts([]attachment.NIC{testNIC("eth1", "p-1")})
	mustAdd(t, r, "a", n.newNetns("a"))
	defer n.tick()()
	r.nics.hush(true)
	waits := func() bool {
		r.nics.mu.Lock()
		defer r.nics.mu.Unlock()
		return len(r.nics.waiting) == 1
	}
	r.given(testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
	waitFor(t, waits)
	n.board.want(t, "p-1", "p-2")
	must(t, r.checks(t))
	r.given(testNIC("eth1", "p-1")) // it is not wanted any more
	r.settles(t, "p-1")
	n.board.want(t, "p-1")
	r.given(testNIC("eth1", "p-1"), testNIC("eth3", "p-3"))
	waitFor(t, waits)
	mustDel(t, r, "a")
	n.board.hear()
	n.board.want(t)
	r.nics.hush(false)
}

// While the link of a pod's first further NIC is missing, the pod is as recorded: CHECK succeeds.
func TestFirstNICThatIsWaitedFor(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.startPorts([]attachment.NIC{})
	mustAdd(t, r, "a", n.newNetns("a"))
	defer n.tick()()
	r.nics.delay(true)
	r.given(testNIC("eth1", "p-1"))
	waitFor(t, func() bool {
		r.nics.mu.Lock()
		defer r.nics.mu.Unlock()
		return len(r.nics.waiting) == 1
	})
	must(t, r.checks(t))
	r.nics.delay(false)
	r.settles(t, "p-1")
}

// A NIC that cannot be unplugged stays, and delays NICs with its name or port, but no others.
func TestNICThatCannotBeUnplugged(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.startPorts([]attachment.NIC{testNIC("eth1", "p-1"), testNIC("eth2", "p-2")})
	mustAdd(t, r, "a", n.newNetns("a"))
	n.board.set("Unplug", plug.ErrUnreachable)
	defer n.tick()()
	r.given(testNIC("eth1", "p-1"), testNIC("eth2", "p-3"), testNIC("eth4", "p-4"))
	r.settles(t, "p-1", "p-2", "p-4")
	n.board.want(t, "p-1", "p-2", "p-4")
	n.board.set("Unplug", nil)
	r.settles(t, "p-1", "p-3", "p-4")
	n.board.want(t, "p-1", "p-3", "p-4")
}

// A pod with a new sandbox has its NICs there, and not in the former one.
func TestNICsOfALaterSandbox(t *testing.T) {
	n := newPortNode(t, "10.0.0.5", "10.0.0.6")
	r := n.startPorts(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	n.clock.Advance(time.Second)
	req := addOf("b", n.newNetns("b"))
	req.Pod = addOf("a", "").GetPod()
	_, err := r.client.Add(within(t), req)
	must(t, err)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	must(t, r.changeNICs(within(t), keyFor("a")))
	if rec, _ := r.Store.Get(keyFor("a")); len(rec.NICs) > 0 {
		t.Errorf("the former sandbox has %+v", rec.NICs)
	}
	r.nics.news.Set()
	defer n.tick()()
	waitFor(t, func() bool {
		rec, ok := r.Store.ByPort("p-1")
		return ok && len(rec.NICs) == 1 && rec.NICs[0].State == attachment.Plugged
	})
	if rec, _ := r.Store.ByPort("p-1"); rec.Key != keyFor("b") {
		t.Errorf("it is plugged into %s", rec.Key)
	}
}

// A daemon is killed at each step of a change. The next one continues: record, switch and operator
// agree, whatever is desired by then.
func TestCrashesOfChanges(t *testing.T) {
	changes := map[string]struct {
		before, after []attachment.NIC // but for the first
		points        []string
	}{
		"add":     {nil, []attachment.NIC{testNIC("eth7", "p-7"), testNIC("eth8", "p-8")}, []string{"daemon.nics.recorded", "daemon.nics.plugged=1", "daemon.nics.plugged=2", "daemon.nics.active", "daemon.nics.changed"}},
		"remove":  {[]attachment.NIC{testNIC("eth7", "p-7"), testNIC("eth8", "p-8")}, nil, []string{"daemon.nics.removed=1", "daemon.nics.removed=2", "daemon.nics.recorded"}},
		"replace": {[]attachment.NIC{testNIC("eth7", "p-7")}, []attachment.NIC{testNIC("eth7", "p-8")}, []string{"daemon.nics.removed", "daemon.nics.recorded", "daemon.nics.plugged=1", "daemon.nics.active", "daemon.nics.changed"}},
	}
	k := 0
	for what, change := range changes {
		for kind, pod := range portPods {
			for _, point := range change.points {
				for _, then := range []string{"goes on", "is taken back", "DEL"} {
					k++
					t.Run(fmt.Sprint(what, k), func(t *testing.T) { // a short name, as it becomes part of a socket's path
						t.Logf("%s, %s, %s", kind, point, then)
						n := newPortNode(t, pod.addrs...)
						own := pod.nics[0]
						before, after := append([]attachment.NIC{own}, change.before...), append([]attachment.NIC{own}, change.after...)
						r := n.startPorts(before)
						mustAdd(t, r, "a", n.newNetns("a"))
						r.stop()

						n.crash(t, point, after, func(r *running, rec attachment.Record) error { return r.changeNICs(context.Background(), rec.Key) })

						r = n.restart(nil)
						r.source.Nothing = len(n.addrs) == 0
						defer n.tick()()
						wanted := after
						if then == "is taken back" {
							wanted = before
						}
						if then != "DEL" {
							r.given(wanted...)
							var ports []string
							for _, nic := range wanted {
								ports = append(ports, nic.Port)
							}
							r.settles(t, ports...)
							waitFor(t, func() bool { // what the record has and the crash took is plugged again behind the start
								n.board.mu.Lock()
								defer n.board.mu.Unlock()
								return len(n.board.plugs) == len(ports)
							})
							n.board.hear()
							n.wantAllPlugged(t, r, ports...)
							must(t, r.checks(t))
						}
						mustDel(t, r, "a")
						waitFor(t, func() bool { return r.reaper.count() == 0 })
						n.board.hear()
						n.wantAllPlugged(t, r)
					})
				}
			}
		}
	}
}

// Changes of NICs and of egress run concurrently with the runtime's calls about the same container, and with restarts.
// In the end record, switch, namespace and operator agree.
func TestChangesBesideCalls(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	n.tunnels = newTunnels()
	own := testNIC("eth1", "p-1")
	r := n.startPorts([]attachment.NIC{own})
	r.egress.says("pod-a", testEgress("nat"))
	mustAdd(t, r, "a", n.newNetns("a"))
	for round := range 6 {
		var wg sync.WaitGroup
		stop := n.tick()
		ctx, end := context.WithCancel(t.Context())
		wg.Go(func() {
			for k := range 20 {
				if k%3 == 0 {
					r.given(own)
				} else {
					r.given(own, testNIC("eth2", fmt.Sprintf("p-%d", 2+k%3)))
				}
				r.egress.says("pod-a", testEgress([]string{"nat", "partner", "third"}[:k%4]...))
				if k%7 == 0 {
					n.tunnels.lose()
				}
			}
			end()
		})
		for _, call := range []func() error{
			func() error { return r.checks(t) },
			func() error { _, err := r.client.Add(within(t), addOf("a", "/run/netns/a")); return err },
			func() error {
				_, err := r.attachments.gc(t.Context(), "berth", []attachment.Key{keyFor("a")})
				return err
			},
			func() error { r.egressKeeper().check(ctx, r.Store.Records()); return nil },
		} {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := call(); err != nil && !strings.Contains(err.Error(), "not as it was set up") {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		stop()
		n.tunnels.mu.Lock()
		n.tunnels.wrong = nil // lose comes between what is set up and what the operator hears
		n.tunnels.mu.Unlock()
		r = n.restart(r)
		r.egress.says("pod-a", testEgress("nat"))
		stop = n.tick()
		n.tunnels.settles(t, "internet/nat")
		if round%2 > 0 {
			r.given(own, testNIC("eth2", "p-9"))
			r.settles(t, "p-1", "p-9")
			n.board.hear()
			n.board.want(t, "p-1", "p-9")
		}
		stop()
	}
}
