//go:build guest

package egressclient

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// everything is a Setup that uses all features.
func everything() Setup {
	s := setup(gateway(1))
	s.Others, s.ClusterNetworks = addrsOf("10.9.9.9"), nets("10.0.0.0/8")
	s.Egresses = append(s.Egresses,
		Egress{Name: "ns/all", Destinations: nets("0.0.0.0/0"), Gateways: []Gateway{gateway(3)}, OriginatingOnly: true, SourcePortAuto: true},
		Egress{Name: "ns/service", Destinations: nets("198.51.100.0/24"), Gateways: []Gateway{gateway(2)}, Service: addrsOf(service4.String(), service6.String())})
	return s
}

// sampled returns the first case to run and the stride to the next, as all cases take minutes in the emulated machine.
// BERTH_SAMPLE is the number of the slice. (This does not use test/harness, which imports the Kubernetes client.)
func sampled(t *testing.T, n int) (first, stride int) {
	t.Helper()
	if !testing.Short() {
		return 0, 1
	}
	number, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_SAMPLE"), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("sample %d of %d", number%n, n)
	return number % n, n
}

// steps applies a Setup and returns the changes that it made.
func (w *world) steps(s Setup, before func(string) error) ([]string, error) {
	w.t.Helper()
	var mu sync.Mutex
	var list []string
	err := apply(w.t.Context(), ns.Path(clientNS), s, func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, what)
		if before != nil {
			return before(what)
		}
		return nil
	})
	return list, err
}

// If Apply fails at any step, the next one completes it. Apply without a difference writes nothing.
func TestApplyCompletesAfterFailureAtAnyStep(t *testing.T) {
	w := newWorld(t)
	empty := w.dump()
	smaller := setup(gateway(2))
	smaller.Port = 6666
	ways := []struct {
		name     string
		from, to Setup
	}{
		{"made", Setup{}, everything()},
		{"changed", everything(), smaller},
		{"removed", everything(), Setup{Port: fouPort}},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			w := &world{t}
			begin := func() {
				t.Helper()
				_, err := w.steps(Setup{}, nil)
				w.must(err)
				_, err = w.steps(way.from, nil)
				w.must(err)
			}
			begin()
			list, err := w.steps(way.to, nil)
			w.must(err)
			want := stateOf(t)
			first, stride := sampled(t, 6)
			for i := first; i < len(list); i += stride {
				begin()
				done := 0
				stop := errors.New("ended")
				_, err := w.steps(way.to, func(string) error {
					if done++; done > i {
						return stop
					}
					return nil
				})
				if err == nil && done <= i { // the kernel had removed some routes with the devices before their own steps
					continue
				}
				if !errors.Is(err, stop) {
					t.Fatalf("step %d, %s: Apply() error = %v, want the injected one", i, list[i], err)
				}
				w.apply(way.to)
				if got := stateOf(t); got != want {
					t.Errorf("failed before step %d, %s: state after the next Apply():\n%s\nwant:\n%s", i, list[i], got, want)
				}
				again, err := w.steps(way.to, nil)
				if err != nil || slices.ContainsFunc(again, func(s string) bool { return !repeated(s) }) {
					t.Errorf("failed before step %d, %s: third Apply() made changes %q (error: %v), want none", i, list[i], again, err)
				}
			}
			t.Logf("%d steps: %s", len(list), strings.Join(list, "; "))
		})
	}
	w.apply(Setup{})
	if now := w.dump(); withoutNumbers(now) != withoutNumbers(empty) {
		t.Errorf("state at the end:\n%s\nwant, as at the start:\n%s", now, empty)
	}
}

// repeated reports whether a step is always made, as it does its own comparison.
func repeated(step string) bool {
	return strings.HasPrefix(step, "make the tunnel") || strings.HasPrefix(step, "remove the FoU port") || step == "remove the tunnels' devices"
}

// stateOf is the observed state of the client as text.
func stateOf(t *testing.T) string {
	t.Helper()
	k, err := open(ns.Path(clientNS))
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	s, err := k.look()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range s.routes {
		lines = append(lines, r.String())
	}
	for _, r := range s.rules {
		lines = append(lines, r.String())
	}
	for f, l := range s.links {
		lines = append(lines, fmt.Sprint(f, l.Attrs().Name, l.Attrs().MTU, portOf(l)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + s.filter
}

// Objects of other software stay when Egresses are added, changed and removed.
func TestObjectsOfOtherSoftwareAreKept(t *testing.T) {
	w := newWorld(t)
	w.in(clientNS, `
ip route add 203.0.113.77/32 via 10.1.0.1 table 117
ip -6 route add 2001:db8:77::/64 via fd01::1 table 118
ip route add 192.0.2.0/24 via 10.1.0.1 table 11701
ip rule add pref 1900 fwmark 0x5 lookup 117
ip rule add pref 2001 to 172.16.0.0/12 lookup 99
ip rule add pref 1234 fwmark 0x10000/0xff0000 lookup 98
ip link add mine type dummy
ip fou add port 7777 ipproto 4
nft -f - <<N
table inet theirs {
 chain output { type filter hook output priority 0; meta mark 0x5 counter; }
}
N`)
	before := w.dump()
	w.apply(everything())
	w.apply(setup(gateway(1)))
	w.apply(Setup{})
	if after := w.dump(); after != before {
		t.Errorf("state before:\n%s\nafter:\n%s", before, after)
	}
}

// Check reports what is missing, wrong or extra, and the next Apply repairs it.
func TestCheck(t *testing.T) {
	newWorld(t)
	s := setup(gateway(1), gateway(2))
	troubles := map[string]string{
		"ip route del 203.0.113.0/24 table 117 metric 1024":                                        "lacks the route 203.0.113.0/24 via 10.1.1.2",
		"ip route del unreachable 203.0.113.0/24 table 117 metric 4096":                            "lacks the route unreachable 203.0.113.0/24",
		"ip -6 rule del pref 1900":                                                                 "lacks the rule 1900 lookup 117",
		"ip rule del pref 1850 fwmark 0x20000/0xff0000":                                            "lacks the rule 1850 fwmark 0x20000/0xff0000 lookup 11702",
		"ip rule add pref 1850 fwmark 0x70000/0xff0000 lookup 11707 proto 190":                     "has the rule 1850 fwmark 0x70000/0xff0000 lookup 11707, which none of its Egresses needs",
		"ip route add 192.0.2.0/24 via 10.1.9.2 dev berth-egress4 onlink table 117 proto 190":      "has the route 192.0.2.0/24 via 10.1.9.2 in table 117, which none of its Egresses needs",
		"ip route replace 203.0.113.0/24 via 10.1.0.1 dev eth0 table 117 metric 1024 proto 190":    "not the route 203.0.113.0/24 via 10.1.1.2",
		"ip link set berth-egress6 down":                                                           "berth-egress6",
		"ip link del berth-egress4":                                                                "berth-egress4",
		"ip link set berth-egress4 mtu 1400":                                                       "MTU 1400, not 1472",
		"ip fou del port 5555":                                                                     "5555",
		"nft delete table inet berth-egress":                                                       "lacks nftables table berth-egress",
		"nft flush chain inet berth-egress output":                                                 "nftables table berth-egress has the wrong content",
		"nft add rule inet berth-egress received udp dport 5555 accept":                            "nftables table berth-egress has the wrong content",
		"echo 0 > /proc/sys/net/ipv4/conf/berth-egress4/rp_filter":                                 "no loose reverse path filtering",
		"ip addr flush dev berth-egress4":                                                          "lacks the pod's address",
		"nft delete table inet berth-egress; ip link del berth-egress4; ip link del berth-egress6": "lacks nftables table berth-egress",
	}
	commands := slices.Sorted(maps.Keys(troubles))
	for i, stride := sampled(t, 3); i < len(commands); i += stride {
		command, want := commands[i], troubles[commands[i]]
		t.Run(command, func(t *testing.T) {
			w := &world{t}
			w.apply(s)
			w.in(clientNS, "%s", command)
			err := Check(t.Context(), ns.Path(clientNS), s)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check() error = %v, want %q", err, want)
			}
			w.apply(s)
			w.from("udp", outside4, gateway4(1), gateway4(2))
			w.from("udp", outside6, gateway6(1), gateway6(2))
		})
	}
}

// If the kernel lacks the device type of the second family, Apply removes what it made for the first.
func TestMissingDeviceTypeIsRolledBack(t *testing.T) {
	w := newWorld(t)
	before := w.dump()
	list, err := w.steps(setup(gateway(1)), func(what string) error {
		if what == "make the tunnel from fd01::2" {
			return fmt.Errorf("%w: as if", ErrNoFoU)
		}
		return nil
	})
	if !errors.Is(err, ErrNoFoU) || !slices.Contains(list, "make the tunnel from 10.1.0.2") {
		t.Errorf("Apply() error after steps %q = %v, want %v", list, err, ErrNoFoU)
	}
	if after := w.dump(); after != before {
		t.Errorf("state before:\n%s\nafter:\n%s", before, after)
	}
}

// For a missing namespace, the error is ErrNoNetns.
func TestMissingNamespace(t *testing.T) {
	if err := Apply(t.Context(), "/run/netns/none", setup()); !errors.Is(err, ErrNoNetns) {
		t.Errorf("Apply() error = %v, want %v", err, ErrNoNetns)
	}
	if err := Check(t.Context(), "/run/netns/none", setup()); !errors.Is(err, ErrNoNetns) {
		t.Errorf("Check() error = %v, want %v", err, ErrNoNetns)
	}
}
