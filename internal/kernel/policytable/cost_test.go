package policytable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/policy"
)

// An element that leads to a chain is there before the pod that needs it comes, so that the kernel does not look at chains for an ADD.
func TestPodsComeWithoutNewWaysToChains(t *testing.T) {
	k := compiler{unions: newUnions()}
	admin := *isolated()
	admin.Tier = policy.Admin
	pod := Pod{Policies: []*policy.Policy{&admin, isolated()}}
	before, err := k.content([]Pod{pod}, base{})
	must(t, err)
	pod.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	after, err := k.content([]Pod{pod}, base{})
	must(t, err)
	for _, of := range []string{ingress.podMap(), ingress.passMap()} {
		was, is := before.sets[chainMap(of)].elements, after.sets[chainMap(of)].elements
		if len(was) == 0 || !maps.Equal(was, is) {
			t.Errorf("map %s has %v before the pod comes and %v then", chainMap(of), was, is)
		}
		if len(after.sets[familyName(of, unix.AF_INET)].elements) != 1 {
			t.Errorf("map %s does not have the pod", of)
		}
	}
}

// The cost of a pod that comes, and of one that goes, on a node with 250 pods and 200 policies.
func BenchmarkSet(b *testing.B) {
	w := newWorld(b, nil)
	for _, shape := range []struct{ peers, ports, each int }{{1, 2, 100}, {5, 5, 100}, {20, 20, 20}} {
		var list []*policy.Policy
		for i := range 200 {
			var rule policy.Rule
			for j := range shape.peers {
				rule.Peers = append(rule.Peers, policy.SetID(fmt.Sprintf("peers-%d-%d", i, j)))
			}
			for j := range shape.ports {
				rule.Ports = append(rule.Ports, policy.Ports{Protocol: unix.IPPROTO_TCP, First: uint16(80 + 10*j), Last: uint16(80 + 10*j)})
			}
			if i%10 == 0 {
				rule.Named = []policy.SetID{policy.SetID(fmt.Sprintf("named-%d", i))}
			}
			list = append(list, &policy.Policy{
				Ref: policy.Ref{Namespace: "n", Name: fmt.Sprintf("policy-%d", i)}, Tier: policy.Namespaced,
				Isolates: [2]bool{true, true}, Rules: [2][]policy.Rule{{rule}, {rule}},
			})
		}
		elements := func(id policy.SetID, yield func(policy.Element)) {
			for i := range 20 {
				e := policy.Element{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i), byte(len(id))})}
				if id[0] == 'n' {
					e.Protocol, e.Port = 6, 80
				}
				yield(e)
			}
		}
		pods := func(n int) (pods []Pod) {
			for i := range n {
				var own []*policy.Policy
				for j := range shape.each {
					own = append(own, list[(i*7+j)%len(list)])
				}
				slices.SortFunc(own, policy.Compare)
				pods = append(pods, Pod{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})}, Policies: own})
			}
			return pods
		}
		all := pods(251)
		b.Run(fmt.Sprintf("%d peers %d ports %d each", shape.peers, shape.ports, shape.each), func(b *testing.B) {
			table := New(w.node)
			began := time.Now()
			if err := table.Apply(all[:250], elements, nil); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-whole")
			b.ResetTimer()
			for i := range b.N {
				if err := table.Apply(all[:250+(i+1)%2], elements, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if err := table.Remove(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
