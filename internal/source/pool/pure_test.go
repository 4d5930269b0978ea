package pool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

var t0 = time.Unix(1_000_000, 0)

func TestPairs(t *testing.T) {
	for _, tc := range []struct{ addr, from, to, want string }{
		{"10.2.0.1", "10.2.0.0/31", "fd02::200/127", "fd02::201"},
		{"fd02::201", "fd02::200/127", "10.2.0.0/31", "10.2.0.1"},
		{"10.2.0.37", "10.2.0.32/27", "fd02::220/123", "fd02::225"},
		{"10.3.255.254", "10.3.0.0/16", "fd03:1::/112", "fd03:1::fffe"},
		{"10.0.0.1", "10.0.0.1/32", "fd00::1/128", "fd00::1"},
		{"10.2.3.255", "10.2.2.0/23", "fd02::1:fe00/119", "fd02::1:ffff"},
	} {
		got := at(netip.MustParseAddr(tc.addr), netip.MustParsePrefix(tc.from), netip.MustParsePrefix(tc.to))
		if got.String() != tc.want {
			t.Errorf("%s of %s stands at %s in %s, want %s", tc.addr, tc.from, got, tc.to, tc.want)
		}
	}
}

func TestReadBlock(t *testing.T) {
	for _, tc := range []struct{ v4, v6, want string }{
		{"10.2.0.0/31", "fd02::200/127", "10.2.0.0/31 fd02::200/127"},
		{"10.2.0.0/31", "", "10.2.0.0/31"},
		{"", "fd02::200/127", "fd02::200/127"},
		{"", "", "expected at least one"},
		{"10.2.0.1/31", "", "ipv4: \"10.2.0.1/31\""},
		{"fd02::/127", "", "ipv4: \"fd02::/127\""},
		{"", "10.2.0.0/31", "ipv6: \"10.2.0.0/31\""},
		{"10.2.0.0/31", "fd02::200/126", "as many addresses in both"},
	} {
		b, err := readBlock(&v1alpha1.AddressBlock{IPv4: tc.v4, IPv6: tc.v6})
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Trim(fmt.Sprint(b.prefixes()), "[]")
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s and %s: %s, want %s", tc.v4, tc.v6, got, tc.want)
		}
	}
}

func TestChoose(t *testing.T) {
	w := world{
		namespaces: map[string]string{"plain": "", "global": "public", "other": "", "lent": "inner"},
		pools: map[string]*poolState{
			"default": {known: true}, "public": {known: true}, "inner": {known: true, podNamespaces: []string{"plain", "global", "lent"}},
			"publik": {podNamespaces: []string{"other"}}, // blocks of a pool that is no more
		},
	}
	told := func(pool string) source.Wish { return source.Wish{Told: true, Pool: pool} }
	for _, tc := range []struct {
		namespace    string
		wish         source.Wish
		want, reason string
		final        bool
	}{
		{"plain", told(""), "default", "", true},
		{"global", told(""), "public", "", true},
		{"global", told("inner"), "inner", "", true},
		{"plain", told("inner"), "inner", "", true},
		{"plain", told("public"), "", "pool-not-allowed", true},
		{"plain", told("default"), "default", "", true}, // what would be its pool anyway needs no permission
		{"global", told("public"), "public", "", true},
		{"global", told("default"), "", "pool-not-allowed", true},
		{"plain", told("publik"), "", "pool-unknown", false},
		{"lost", told(""), "", "namespace-unknown", false},
		{"lost", told("default"), "", "namespace-unknown", false},
		{"", told(""), "", "pod-unnamed", true},

		// A runtime that does not tell annotations.
		{"other", source.Wish{}, "default", "", true},
		{"lent", source.Wish{}, "inner", "", true}, // there is one that its pods may choose, and it is theirs anyway
		{"plain", source.Wish{}, "", "annotations-untold", true},
		{"global", source.Wish{}, "", "annotations-untold", true},
		{"lost", source.Wish{}, "", "namespace-unknown", false},
	} {
		pod := attachment.Pod{Namespace: tc.namespace, Name: "p"}
		if tc.namespace == "" {
			pod.Name = ""
		}
		got, final, why := choose(w, pod, tc.wish)
		reason := ""
		if why != nil {
			reason = why.Reason
		}
		if got != tc.want || final != tc.final || reason != tc.reason {
			t.Errorf("%s %+v: %q, final %v, %q; want %q, %v, %q", tc.namespace, tc.wish, got, final, reason, tc.want, tc.final, tc.reason)
		}
	}
	w.pools = nil
	if _, final, why := choose(w, attachment.Pod{Namespace: "plain", Name: "p"}, source.Wish{}); final || why.Reason != "pool-unknown" {
		t.Errorf("before the pools are known: final %v, %v", final, why)
	}
}

func TestDemand(t *testing.T) {
	for _, tc := range []struct {
		name   string
		have   supply
		target int
		blocks int
	}{
		{"nothing here, nobody waits", supply{size: 32}, 0, 0},
		{"a pool that is kept warm", supply{size: 32, warm: true}, 8, 1},
		{"enough is free", supply{size: 32, warm: true, free: 8}, 8, 0},
		{"a block before the last one is full", supply{size: 32, warm: true, free: 7}, 8, 1},
		{"two addresses: a quarter is none", supply{size: 2, warm: true, free: 0}, 0, 0},
		{"single addresses are asked for one by one", supply{size: 1, warm: true, waiting: 3}, 0, 3},
		{"a hundred pods at once", supply{size: 32, warm: true, waiting: 100}, 8, 4},
		{"a hundred pods at once, single addresses", supply{size: 1, warm: true, waiting: 100}, 0, 8},
		{"those who wait get what is on its way", supply{size: 4, warm: true, waiting: 3, free: 4}, 1, 0},
		{"a huge block", supply{size: 1 << 30, warm: true, free: 1 << 29}, 1 << 28, 0},
	} {
		if got := tc.have.target(25); got != tc.target {
			t.Errorf("%s: target %d, want %d", tc.name, got, tc.target)
		}
		if got := tc.have.blocks(25); got != tc.blocks {
			t.Errorf("%s: %d blocks, want %d", tc.name, got, tc.blocks)
		}
	}
}

func TestReturn(t *testing.T) {
	const delay = time.Minute
	long, longer, now := t0.Add(-2*delay), t0.Add(-3*delay), t0
	for _, tc := range []struct {
		name  string
		have  supply
		empty []idle
		want  string
		soon  time.Time
	}{
		{"the last block of a pool that is kept warm", supply{size: 32, warm: true, free: 32}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"the last block of one that nobody uses", supply{size: 32, free: 32}, []idle{{"a", 32, long}}, "a", time.Time{}},
		{"the longest empty", supply{size: 32, warm: true, free: 64}, []idle{{"a", 32, long}, {"b", 32, longer}}, "b", time.Time{}},
		{"all but what keeps it warm", supply{size: 4, warm: true, free: 12}, []idle{{"a", 4, long}, {"b", 4, long}, {"c", 4, longer}}, "c a", time.Time{}},
		{"not at once", supply{size: 32, free: 32}, []idle{{"a", 32, now.Add(-time.Second)}}, "", now.Add(delay - time.Second)},
		{"the rest is too full", supply{size: 32, warm: true, free: 32 + 7}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"pods wait", supply{size: 1, warm: true, free: 1, waiting: 1}, []idle{{"a", 1, long}}, "", time.Time{}},
	} {
		names, soon := toReturn(tc.have, 25, tc.empty, delay, now)
		if got := strings.Join(names, " "); got != tc.want || !soon.Equal(tc.soon) {
			t.Errorf("%s: %q, next %v; want %q, %v", tc.name, got, soon, tc.want, tc.soon)
		}
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a-very-long-name.", 14) + "example"
	seen := map[string]bool{}
	for _, node := range []string{"node-1", "node-2", long, long + "2"} {
		for slot := range maxOutstanding {
			name := requestName("pool-1", node, slot)
			if slotOf(name) != slot || seen[name] || len(name) > 90 || !strings.HasPrefix(name, "pool-1-") {
				t.Errorf("request %s of slot %d", name, slot)
			}
			seen[name] = true
		}
	}
	for _, name := range []string{"", "x", "pool-1-8", "pool-1-x", "pool-1--1"} {
		if got := slotOf(name); got != -1 && name != "pool-1--1" {
			t.Errorf("%q is of slot %d", name, got)
		}
	}
}

func TestReadRequest(t *testing.T) {
	condition := func(kind, status string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: v1alpha1.ReasonPoolExhausted, Message: "full"}
	}
	for _, tc := range []struct {
		name       string
		block      string
		conditions []metav1.Condition
		complete   bool
		failed     string
	}{
		{"new", "", nil, false, ""},
		{"complete", "p-1", []metav1.Condition{condition("Complete", "True")}, true, ""},
		{"half written", "p-1", nil, false, ""},
		{"failed", "", []metav1.Condition{condition("Failed", "True")}, false, "PoolExhausted"},
		{"failed before", "p-1", []metav1.Condition{condition("Failed", "True"), condition("Complete", "True")}, true, ""},
		{"failed no more", "", []metav1.Condition{condition("Failed", "False")}, false, ""},
	} {
		r := readRequest(&v1alpha1.BlockRequest{Status: v1alpha1.BlockRequestStatus{AddressBlockName: tc.block, Conditions: tc.conditions}}, t0)
		if r.complete() != tc.complete || r.failed != tc.failed {
			t.Errorf("%s: complete %v, failed %q", tc.name, r.complete(), r.failed)
		}
	}
}

func TestFile(t *testing.T) {
	f := file{t.TempDir()}
	if _, _, ok, err := f.load(); ok || err != nil {
		t.Errorf("without a file: %v, %v", ok, err)
	}
	want := []blockFacts{
		blockOf("default-0", "10.0.0.0/27", "fd00::/123"), blockOf("v6-1", "fd00::1:0/112", ""), blockOf("one-7", "10.1.0.7/32", ""),
	}
	want[2].draining = true
	if err := f.save("node-1", want); err != nil {
		t.Fatal(err)
	}
	node, got, ok, err := f.load()
	if err != nil || !ok || node != "node-1" {
		t.Fatalf("node %q, %v, %v", node, ok, err)
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(blockFacts{}), cmp.Comparer(func(x, y netip.Prefix) bool { return x == y })); d != "" {
		t.Errorf("(-saved +loaded)\n%s", d)
	}
}

// blockOf is a block of the pool that its name says.
func blockOf(name, first, second string) blockFacts {
	b := blockFacts{name: name, pool: name[:strings.LastIndexByte(name, '-')], uid: types.UID("uid-" + name), first: netip.MustParsePrefix(first)}
	if second != "" {
		b.second = netip.MustParsePrefix(second)
	}
	return b
}

func uidOf(name string) types.UID { return types.UID("uid-" + name) }
