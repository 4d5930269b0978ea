package policytable

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/policy"
)

func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip()
	}
	w := newWorld(t, nil)
	table := New(w.node)
	p := isolated()
	p.Rules[policy.Ingress][0].Peers = []policy.SetID{"all"}
	n := 160000
	elements := func(id policy.SetID, yield func(policy.Element)) {
		for i := range n {
			yield(policy.Element{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
		}
	}
	pods := []Pod{{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Policies: []*policy.Policy{p}}}
	start := time.Now()
	must(t, table.Apply(pods, elements, nil))
	t.Log("160,000 elements", time.Since(start))
	start = time.Now()
	for range 20 {
		must(t, table.ApplyElements(elements, policy.SetChanges{"all": {Elements: map[policy.Element]bool{{Addr: netip.MustParseAddr("10.77.0.2")}: true}}}))
		must(t, table.ApplyElements(elements, policy.SetChanges{"all": {Elements: map[policy.Element]bool{{Addr: netip.MustParseAddr("10.77.0.2")}: false}}}))
	}
	t.Log("one element", time.Since(start)/40)
	var many []Pod
	for i := range 80 {
		var list []*policy.Policy
		for j := range 50 {
			if i >= 20 {
				list = many[i%20].Policies
				break
			}
			q := isolated(netip.MustParsePrefix("10.9.0.0/16"))
			q.Name = string(rune('a'+i)) + string(rune('A'+j))
			list = append(list, q)
		}
		many = append(many, Pod{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, byte(i)})}, Policies: list})
	}
	start = time.Now()
	must(t, table.Apply(many, elements, nil))
	t.Log("80 pods of 1,000 policies, 50 each", time.Since(start))
	start = time.Now()
	must(t, table.Apply(many[1:], elements, nil))
	t.Log("a pod less", time.Since(start))
	start = time.Now()
	for i := range 20 {
		must(t, table.Apply(many[i%2:], elements, nil))
	}
	t.Log("a pod more or less", time.Since(start)/20)
	start = time.Now()
	for i := range 20 {
		_, err := table.compile.content(many[i%2:], table.base)
		must(t, err)
	}
	t.Log("of which compiling", time.Since(start)/20)
	start = time.Now()
	n2, err := table.End(func(policy.Flow) bool { return true })
	t.Log("end", n2, err, time.Since(start))
}
