package pool

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

func TestWithheldPlaces(t *testing.T) {
	for _, tc := range []struct{ first, second, withheld, want string }{
		{"10.0.0.0/29", "", "", ""},
		{"10.0.0.0/29", "", "10.0.0.2/32", "10.0.0.2"},
		{"10.0.0.0/29", "", "10.0.0.6/31 10.0.0.0/32", "10.0.0.6 10.0.0.7 10.0.0.0"},
		{"10.0.0.8/30", "fd00::8/126", "fd00::9/128 10.0.0.8/32", "10.0.0.9 10.0.0.8"},
		{"10.0.0.8/30", "fd00::8/126", "fd00::a/127", "10.0.0.10 10.0.0.11"},
		{"fd00::8/127", "", "fd00::9/128", "fd00::9"},
		{"10.0.0.8/31", "", "10.0.0.8/31", "10.0.0.8 10.0.0.9"},
		{"10.0.0.8/31", "", "10.0.0.8/29", "10.0.0.8 10.0.0.9"},
		{"10.0.0.8/31", "", "10.0.0.7/32 fd00::9/128 nonsense 255.255.255.255/32", ""},
		{"255.255.255.254/31", "", "255.255.255.254/31", "255.255.255.254 255.255.255.255"},
	} {
		b := blockOf("p-0", tc.first, tc.second)
		b.withheld = readWithheld(withholding(tc.withheld))
		check.Equal(t, strings.Trim(fmt.Sprint(b.withheldPlaces()), "[]"), tc.want, "%s %s without %s", tc.first, tc.second, tc.withheld)
	}
}

func withholding(cidrs string) (out []v1alpha1.WithheldAddresses) {
	for _, c := range strings.Fields(cidrs) {
		out = append(out, v1alpha1.WithheldAddresses{CIDR: c, Owner: "Node node-2"})
	}
	return out
}

// An address of a node is not assigned to pods, even if it is published later. A pod that already holds it
// keeps it and is notified once. It is assigned again only when no node uses it.
func TestWithheldAddresses(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	block := blockOf("default-0", "10.0.0.0/30", "fd00::/126")
	withhold := func(cidrs string) {
		block.withheld = readWithheld(withholding(cidrs))
		b.give(block)
	}
	conflicts := func(want string) {
		t.Helper()
		var got []string
		for _, c := range b.leases.conflicts(b.blocks.byName["default-0"], b.policy.selfOwner(), b.nodeHas) {
			got = append(got, fmt.Sprintf("%s has %s of %s", c.pod.Name, c.addr, c.owner))
		}
		check.Equal(t, strings.Join(got, ", "), want, "conflicts")
	}
	withhold("10.0.0.1/32")
	b.adds(0, "10.0.0.0 fd00::")
	b.adds(1, "10.0.0.2 fd00::2")
	withhold("10.0.0.1/32 fd00::/128 10.0.0.3/32")
	conflicts(podRequest(0).Pod.Name + " has fd00:: of Node node-2")
	conflicts("")
	if c := b.pools.counts(b.blocks.byName["default-0"]); c.Used != 2 || c.Free != 0 || c.Withdrawn != 2 {
		t.Errorf("counts = %+v, want 2 used and 2 withdrawn", c)
	}
	if p := b.at(b.now).poolInfo(b.pools.byName["default"]); p.Used != 2 || p.Free != 0 || p.retired != 2 {
		t.Errorf("pool = %+v, want 2 used and 2 retired", p)
	}
	b.expect("withheld addresses do not count", "create-request default-0")
	b.release(key(0), b.now)
	b.now = b.now.Add(cools + time.Second)
	b.expire(b.now)
	w, got := b.add(2)
	check.Equal(t, got, "waits", "pod 2 got")
	withhold("10.0.0.1/32 10.0.0.3/32")
	check.Equal(t, b.answer(w), "10.0.0.0 fd00::", "pod 2 got")

	// A pool may reserve the address of a pod, which keeps it and is not notified. Once released it stays free.
	block.withheld = []withheldRange{{netip.MustParsePrefix("10.0.0.0/32"), v1alpha1.WithheldByPool + "default"}}
	b.give(block)
	conflicts("")
	check.Equal(t, fmt.Sprint(b.leases.byKey[key(2)].Addrs()), "[10.0.0.0 fd00::]", "pod 2 holds")
	b.release(key(2), b.now)
	b.now = b.now.Add(cools + time.Second)
	b.expire(b.now)
	if c := b.pools.counts(b.blocks.byName["default-0"]); c.Used != 1 || c.Free != 2 || c.Withdrawn != 1 {
		t.Errorf("counts = %+v, want 1 used, 2 free and the reserved one withdrawn", c)
	}
	block.withheld = readWithheld(withholding("10.0.0.1/32 10.0.0.3/32"))
	b.give(block)

	// The withheld addresses survive a restart from the file, as does a pod's conflict.
	f := file{t.TempDir()}
	check.OK(t, f.save(nodeID, b.blocks.desired()))
	_, blocks, _, err := f.load()
	if err != nil || len(blocks) != 1 {
		t.Fatalf("stored blocks = %v, error %v; want one", blocks, err)
	}
	next := newTestNode(t, poolFacts{name: "default", bits: 2})
	next.give(blocks[0])
	lease := b.leases.byKey[key(1)].Lease
	lease.IPv4, lease.IPv6 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	check.OK(t, next.restore(podRequest(9), lease, next.now))
	check.Equal(t, len(next.leases.conflicts(next.blocks.byName["default-0"], next.policy.selfOwner(), next.nodeHas)), 1, "conflicts")
	next.adds(3, "10.0.0.0 fd00::")
	next.adds(4, "10.0.0.2 fd00::2")
	next.adds(5, "waits")
}

// Addresses that the node itself has, according to the kernel, are withheld as well, also in later blocks.
func TestAddressesThatTheNodeHas(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	s := &Source{state: newGuarded(b.holdings, clock.Real{})}
	withhold := func(want string, addrs ...string) {
		t.Helper()
		var list []netip.Addr
		for _, a := range addrs {
			list = append(list, netip.MustParseAddr(a))
		}
		check.Equal(t, strings.Trim(fmt.Sprint(s.Withhold(list)), "[]"), want, "withheld")
	}
	withhold("", "10.0.0.1", "fd00::2", "192.0.2.1")
	block := blockOf("default-0", "10.0.0.0/30", "fd00::/126")
	block.withheld = readWithheld(withholding("10.0.0.3/32"))
	b.give(block)
	b.adds(0, "10.0.0.0 fd00::")
	w, got := b.add(1)
	check.Equal(t, got, "waits", "pod 1 got")
	withhold("10.0.0.1 fd00::2", "10.0.0.1", "fd00::2", "10.0.0.0") // pod 0 holds the last one
	withhold("10.0.0.1", "10.0.0.1")
	check.Equal(t, b.answer(w), "10.0.0.2 fd00::2", "pod 1 got")
	b.adds(2, "waits")

	// The daemon notifies a pod with an address of its own Node if the kernel has the address too.
	for kernelHas, want := range map[string]int{"10.0.0.1": 1, "10.0.0.0": 0} {
		b.policy.nodeName = "node-2"
		block.withheld = nil
		b.give(block)
		b.leases.conflicts(b.blocks.byName["default-0"], b.policy.selfOwner(), b.nodeHas)
		withhold(strings.ReplaceAll(kernelHas, "10.0.0.0", ""), kernelHas)
		block.withheld = readWithheld(withholding("10.0.0.0/32"))
		b.give(block)
		check.Equal(t, len(b.leases.conflicts(b.blocks.byName["default-0"], b.policy.selfOwner(), b.nodeHas)), want, "the node has %s: conflicts", kernelHas)
		check.Equal(t, fmt.Sprint(s.NodeAddresses()), "[10.0.0.0]", "addresses of the Node")
	}
}

// The conflict callback may call the source in the same goroutine, because no lock is held.
func TestConflictCallbackRunsWithoutTheLock(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	var told []string
	s := &Source{log: slog.New(slog.DiscardHandler), state: newGuarded(b.holdings, clock.Real{})}
	s.cfg = Config{NodeName: nodeID, Clock: clock.Real{}, Conflict: func(pod attachment.Pod, _, message string) {
		told = append(told, fmt.Sprintf("%s of %d: %s", pod.Name, len(s.Snapshot().Addresses), message))
		s.Kick()
		s.Release(key(0))
	}}
	b.give(blockOf("default-0", "10.0.0.0/30", ""))
	b.adds(0, "10.0.0.0")
	done := make(chan struct{})
	go func() {
		s.mirror().Update(func() {
			s.putBlock(b.holdings, &v1alpha1.AddressBlock{
				ObjectMeta: metav1.ObjectMeta{Name: "default-0", UID: uidOf("default-0")},
				NodeName:   nodeID, PoolName: "default", IPv4: "10.0.0.0/30", Withheld: withholding("10.0.0.0/32"),
			})
		})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the callback is blocked by the lock of its caller")
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], podRequest(0).Pod.Name+" of 4: address 10.0.0.0 of this pod is also one of Node node-2") {
		t.Errorf("notifications = %q, want one for address 10.0.0.0", told)
	}
	check.Equal(t, s.Snapshot().Count[source.Used], 0, "addresses in use after the pod was released")
}
