package addresspool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/api/v1alpha1"
)

// poolAt returns a pool that was created after this many seconds and has no accepted subnets.
func poolAt(name string, after int, bits int32, cidrs ...string) v1alpha1.AddressPool {
	p := v1alpha1.AddressPool{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Unix(1e9+int64(after), 0),
		},
		Spec: v1alpha1.AddressPoolSpec{BlockSizeBits: &bits},
	}
	for _, c := range cidrs {
		s := v1alpha1.PoolSubnet{IPv4: c}
		if v4, v6, both := strings.Cut(c, "+"); both {
			s = v1alpha1.PoolSubnet{IPv4: v4, IPv6: v6}
		} else if strings.Contains(c, ":") {
			s = v1alpha1.PoolSubnet{IPv6: c}
		}
		p.Spec.Subnets = append(p.Spec.Subnets, s)
	}
	return p
}

func has(p v1alpha1.AddressPool, n int32) v1alpha1.AddressPool {
	p.Status.AcceptedSubnets = n
	return p
}

func deleted(p v1alpha1.AddressPool) v1alpha1.AddressPool {
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2e9, 0)}
	return p
}

func TestDecide(t *testing.T) {
	a := poolAt("a", 1, 2, "10.0.0.0/24")
	b := poolAt("b", 2, 2, "10.0.0.128/25")
	for name, tc := range map[string]struct {
		of     string
		pools  []v1alpha1.AddressPool
		blocks []v1alpha1.AddressBlock
		want   int
		why    string // reason and a part of the message
	}{
		"alone":                         {of: "a", pools: []v1alpha1.AddressPool{a}, want: 1},
		"unknown":                       {of: "x", pools: []v1alpha1.AddressPool{a}, want: 0},
		"older of two":                  {of: "a", pools: []v1alpha1.AddressPool{b, a}, want: 1},
		"younger of two":                {of: "b", pools: []v1alpha1.AddressPool{b, a}, why: "PoolOverlaps 10.0.0.0/24 of pool a"},
		"younger pool accepted first":   {of: "a", pools: []v1alpha1.AddressPool{a, has(b, 1)}, why: "PoolOverlaps 10.0.0.128/25 of pool b"},
		"younger pool keeps its subnet": {of: "b", pools: []v1alpha1.AddressPool{a, has(b, 1)}, want: 1},
		"same second, ordered by name":  {of: "b", pools: []v1alpha1.AddressPool{poolAt("b", 1, 2, "10.0.0.0/25"), a}, why: "PoolOverlaps pool a"},
		"older pool being deleted":      {of: "b", pools: []v1alpha1.AddressPool{deleted(a), b}, want: 1},
		"older pool being deleted with accepted subnet": {of: "b", pools: []v1alpha1.AddressPool{deleted(has(a, 1)), b}, why: "PoolOverlaps pool a"},
		"no subnet for a pool being deleted":            {of: "a", pools: []v1alpha1.AddressPool{deleted(a)}, want: 0},
		"appended subnet":                               {of: "a", pools: []v1alpha1.AddressPool{has(poolAt("a", 1, 2, "10.0.0.0/24", "10.1.0.0/24"), 1), b}, want: 2},
		"overlap in the second of three subnets":        {of: "a", pools: []v1alpha1.AddressPool{has(poolAt("a", 1, 2, "10.1.0.0/24", "10.0.0.0/24", "10.2.0.0/24"), 1), has(b, 1)}, want: 1, why: "PoolOverlaps spec.subnets[1]"},
		"IPv6 overlap":                                  {of: "b", pools: []v1alpha1.AddressPool{poolAt("a", 1, 2, "10.0.0.0/24+fd01::/120"), poolAt("b", 2, 2, "10.9.0.0/24+fd01::/120")}, why: "PoolOverlaps fd01::/120"},
		"overlaps only a refused subnet":                {of: "c", pools: []v1alpha1.AddressPool{has(poolAt("a", 1, 2, "10.0.0.0/16"), 1), poolAt("b", 2, 2, "10.0.0.0/8"), poolAt("c", 3, 2, "10.9.0.0/16")}, want: 1},
		"block of a deleted pool":                       {of: "a", pools: []v1alpha1.AddressPool{a}, blocks: []v1alpha1.AddressBlock{{ObjectMeta: metav1.ObjectMeta{Name: "old-3"}, PoolName: "old", IPv4: "10.0.0.12/30"}}, why: "PoolOverlaps block old-3"},
		"own block":                                     {of: "a", pools: []v1alpha1.AddressPool{a}, blocks: []v1alpha1.AddressBlock{{ObjectMeta: metav1.ObjectMeta{Name: "a-3"}, PoolName: "a", Index: 3, IPv4: "10.0.0.12/30"}}, want: 1},
		"block of an earlier pool of the same name":     {of: "a", pools: []v1alpha1.AddressPool{a}, blocks: []v1alpha1.AddressBlock{{ObjectMeta: metav1.ObjectMeta{Name: "a-3"}, PoolName: "a", Index: 3, IPv4: "10.0.0.24/29"}}, why: "PoolOverlaps block a-3"},
		"host bits set":                                 {of: "a", pools: []v1alpha1.AddressPool{poolAt("a", 1, 2, "10.0.0.0/24", "10.0.0.5/24")}, want: 1, why: "PoolInvalid subnets[1].ipv4"},
		"not a CIDR":                                    {of: "a", pools: []v1alpha1.AddressPool{poolAt("a", 1, 2, "ten")}, why: "PoolInvalid subnets[0].ipv4"},
		"status accepts more subnets than the spec has": {of: "a", pools: []v1alpha1.AddressPool{has(a, 7)}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var orphans []ownedRange
			orphansOf := orphanRanges(tc.pools)
			for i := range tc.blocks {
				orphans = append(orphans, orphansOf(&tc.blocks[i])...)
			}
			n, why := decide(tc.of, tc.pools, orphans)
			if n != tc.want {
				t.Errorf("decide() = %d subnets, want %d", n, tc.want)
			}
			reason, word, _ := strings.Cut(tc.why, " ")
			if (why == nil) != (tc.why == "") || why != nil && (why.reason != reason || !strings.Contains(why.message, word)) {
				t.Errorf("decide() refused with %+v, want %q", why, tc.why)
			}
		})
	}
}

// Whatever the order of decisions, each based on the subnets accepted so far, no two pools ever
// share an address, and no pool loses a subnet.
func TestDecisionsNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pools []v1alpha1.AddressPool
		for i := range rapid.IntRange(2, 5).Draw(t, "pools") {
			var cidrs []string
			for range rapid.IntRange(1, 3).Draw(t, "subnets") {
				bits := rapid.IntRange(24, 28).Draw(t, "bits")
				host := rapid.IntRange(0, 15).Draw(t, "place") << 4 &^ (1<<(32-bits) - 1)
				cidrs = append(cidrs, fmt.Sprintf("10.0.0.%d/%d", host, bits))
			}
			pools = append(pools, poolAt(fmt.Sprintf("p%d", i), rapid.IntRange(0, 3).Draw(t, "age"), 2, cidrs...))
		}
		for range 3 * len(pools) {
			i := rapid.IntRange(0, len(pools)-1).Draw(t, "next")
			n, _ := decide(pools[i].Name, pools, nil)
			if n < accepted(&pools[i]) {
				t.Fatalf("pool %s has lost subnets: %d before, %d now", pools[i].Name, accepted(&pools[i]), n)
			}
			pools[i].Status.AcceptedSubnets = int32(n)
			for _, p := range pools {
				if own, other, why := conflict(p.Name, pools); other != nil || own != accepted(&p) {
					t.Fatal(p.Name, own, why)
				}
			}
		}
	})
}

func TestConflict(t *testing.T) {
	a, b := has(poolAt("a", 1, 2, "10.0.0.0/24"), 1), poolAt("b", 2, 2, "10.1.0.0/24", "10.0.0.0/25")
	for n, want := range []int{0, 1, 1} {
		own, other, why := conflict("b", []v1alpha1.AddressPool{a, has(b, int32(n))})
		if own != want || (other != nil) != (n == 2) {
			t.Errorf("conflict() with %d accepted subnets = %d, %v", n, own, other)
		}
		if other != nil && (other.Name != "a" || !strings.Contains(why.message, "spec.subnets[1]: 10.0.0.0/25 overlaps 10.0.0.0/24 of pool a")) {
			t.Errorf("conflict() = pool %s, %+v, want pool a and the overlapping subnets", other.Name, why)
		}
	}
}

func TestLiveness(t *testing.T) {
	const grace = time.Minute
	now := time.Unix(1e9, 0)
	block := func(name string, renewed int) v1alpha1.AddressBlock {
		b := v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if renewed > 0 {
			b.Status.RenewTime = &metav1.MicroTime{Time: time.Unix(int64(renewed), 0)} // written by the node's clock
		}
		return b
	}
	asks := func(uids ...string) (list []v1alpha1.BlockRequest) {
		for _, u := range uids {
			list = append(list, v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{UID: types.UID(u)}})
		}
		return list
	}
	type look struct {
		after    time.Duration // since the last observation
		blocks   []v1alpha1.AddressBlock
		requests []v1alpha1.BlockRequest
		left     time.Duration
	}
	one := []v1alpha1.AddressBlock{block("b", 0)}
	for name, looks := range map[string][]look{
		"grace starts at first observation": {{blocks: one, left: grace}, {after: grace, blocks: one, left: 0}},
		"old renewal does not count":        {{blocks: []v1alpha1.AddressBlock{block("b", 5)}, left: grace}, {after: grace, blocks: []v1alpha1.AddressBlock{block("b", 5)}, left: 0}},
		"renewal restarts the grace":        {{blocks: one, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("b", 5)}, left: grace}},
		"renewal by a clock set back":       {{blocks: []v1alpha1.AddressBlock{block("b", 5)}, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("b", 3)}, left: grace}},
		"renewal of one of two blocks":      {{blocks: []v1alpha1.AddressBlock{block("a", 0), block("b", 0)}, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("a", 0), block("b", 1)}, left: grace}},
		"released block does not count":     {{blocks: []v1alpha1.AddressBlock{block("a", 0), block("b", 0)}, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("a", 0)}, left: 10 * time.Second}},
		"new block does not count":          {{blocks: one, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("a", 0), block("b", 0)}, left: 10 * time.Second}},
		"new block that is claimed":         {{blocks: one, left: grace}, {after: 50 * time.Second, blocks: []v1alpha1.AddressBlock{block("a", 7), block("b", 0)}, left: grace}},
		"new request restarts the grace":    {{blocks: one, left: grace}, {after: 50 * time.Second, blocks: one, requests: asks("r"), left: grace}},
		"old request does not count":        {{requests: asks("r"), left: grace}, {after: 50 * time.Second, requests: asks("r"), left: 10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			s, at := &liveness{}, now
			for i, l := range looks {
				at = at.Add(l.after)
				s.observe(at, l.blocks, l.requests)
				if left := s.left(at, grace); left != l.left {
					t.Errorf("observation %d: left() = %v, want %v", i, left, l.left)
				}
			}
		})
	}
}

func TestFenced(t *testing.T) {
	now := time.Unix(1e9, 0)
	node := func(status corev1.ConditionStatus, since time.Duration, taint string) *corev1.Node {
		n := &corev1.Node{}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
		if taint != "" {
			n.Spec.Taints = []corev1.Taint{{Key: taint}}
		}
		return n
	}
	for name, tc := range map[string]struct {
		node  *corev1.Node
		after time.Duration
		left  time.Duration
		known bool
	}{
		"no policy":                    {node: node(corev1.ConditionUnknown, time.Hour, corev1.TaintNodeOutOfService)},
		"down but not fenced":          {node: node(corev1.ConditionUnknown, time.Hour, corev1.TaintNodeUnreachable), after: time.Minute},
		"fenced but ready":             {node: node(corev1.ConditionTrue, time.Hour, corev1.TaintNodeOutOfService), after: time.Minute},
		"fenced, grace period running": {node: node(corev1.ConditionFalse, 20*time.Second, corev1.TaintNodeOutOfService), after: time.Minute, left: 40 * time.Second, known: true},
		"fenced, grace period over":    {node: node(corev1.ConditionUnknown, time.Minute, corev1.TaintNodeOutOfService), after: time.Minute, known: true},
		"no Ready condition":           {node: &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}}}, after: time.Minute},
	} {
		if left, known := fenced(tc.node, now, tc.after); left != tc.left || known != tc.known {
			t.Errorf("%s: fenced() = %v, %t, want %v, %t", name, left, known, tc.left, tc.known)
		}
	}
}
