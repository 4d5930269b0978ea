package policytable

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/berthnet/berth/internal/policy"
)

// What other software changes in rules, maps and sets is found.
func TestKernelIsCompared(t *testing.T) {
	pod4, pod6 := netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("fd00:1::2")
	peer4, peer6, stranger := netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd00:2::2"), netip.MustParseAddr("10.0.3.2")
	w := newWorld(t, nil)
	table := New(w.node)
	p := &policy.Policy{Ref: policy.Ref{Namespace: "red", Name: "p"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
	p.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.SetID{"pods-1"}, Named: []policy.SetID{"ports-1"}}}
	target := policy.Element{Addr: pod4, Protocol: 6, Port: 80}
	elements := func(id policy.SetID, yield func(policy.Element)) {
		if id == "ports-1" {
			yield(target)
			return
		}
		yield(policy.Element{Addr: peer4})
		yield(policy.Element{Addr: peer6})
	}
	expected := []Expected{
		{"pods-1", policy.Element{Addr: peer4}, true}, {"pods-1", policy.Element{Addr: peer6}, true}, {"pods-1", policy.Element{Addr: stranger}, false},
		{"ports-1", target, true}, {"ports-1", policy.Element{Addr: pod4, Protocol: 6, Port: 81}, false}, {"other", policy.Element{Addr: stranger}, false},
	}
	pods := []netip.Addr{pod4, pod6, stranger}
	if err := table.Compare(pods, expected); err == nil {
		t.Error("a table that was never applied is as applied")
	}
	apply := func() {
		t.Helper()
		table.Forget()
		must(t, table.Apply([]Pod{{Addrs: []netip.Addr{pod4, pod6}, Policies: []*policy.Policy{p}}}, elements, nil))
		must(t, table.Compare(pods, expected))
	}
	apply()
	have, _ := table.snapshot()
	table.mu.Lock() // as for a change, which is not held up
	err := table.compare(*have, pods, expected)
	table.mu.Unlock()
	must(t, err)
	for _, tt := range []struct {
		change func(conn *nftables.Conn, set func(name string) *nftables.Set) error
		want   string
	}{
		{func(conn *nftables.Conn, set func(string) *nftables.Set) error {
			return conn.SetDeleteElements(set("pods-1-ip4"), []nftables.SetElement{{Key: peer4.AsSlice()}})
		}, "set pods-1-ip4 lacks 10.0.2.2"},
		{func(conn *nftables.Conn, set func(string) *nftables.Set) error {
			return conn.SetAddElements(set("pods-1-ip4"), []nftables.SetElement{{Key: stranger.AsSlice()}})
		}, "set pods-1-ip4 has 10.0.3.2, and should not"},
		{func(conn *nftables.Conn, set func(string) *nftables.Set) error {
			conn.FlushSet(set("ingress6"))
			return nil
		}, "map ingress6 leads from fd00:1::2 to chain \"\""},
		{func(conn *nftables.Conn, set func(string) *nftables.Set) error {
			conn.FlushChain(&nftables.Chain{Name: "judge-ingress", Table: set("ingress4").Table})
			return nil
		}, "rules are missing"},
	} {
		conn, err := table.open()
		must(t, err)
		must(t, tt.change(conn, func(name string) *nftables.Set {
			s, err := conn.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name}, name)
			must(t, err)
			return s
		}))
		must(t, conn.Flush())
		if err := table.Compare(pods, expected); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
		apply()
	}
}

// A set counts for nothing if another policy of the pod accepts every peer, and then the kernel need not have it.
func TestSetsWithoutEffectAreNotCompared(t *testing.T) {
	pod, peer := pair("10.0.1.2", "fd00:1::2"), netip.MustParseAddr("10.0.2.2")
	table := New(newWorld(t, nil).node)
	some, all := isolated(), isolated()
	some.Name, some.Rules[policy.Ingress] = "some", []policy.Rule{{Peers: []policy.SetID{"pods-1"}, AnyPort: true}}
	all.Name, all.Rules[policy.Ingress] = "all", []policy.Rule{{AnyPeer: true, AnyPort: true}}
	elements := func(_ policy.SetID, yield func(policy.Element)) { yield(policy.Element{Addr: peer}) }
	must(t, table.Apply([]Pod{{Addrs: pod[:], Policies: []*policy.Policy{all, some}}}, elements, nil))
	must(t, table.Compare(pod[:], []Expected{{"pods-1", policy.Element{Addr: peer}, true}}))
	must(t, table.Remove())
}
