package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// machine applies the same random steps to an Allocator and the model.
type machine struct {
	a   *Allocator[string]
	m   *model
	now time.Time
}

var groupIDs = []string{"eni-a", "eni-b", "eni-c"}

// groupNet returns the address range of a group: single addresses are the first eight, followed by two /30 prefixes and
// one /29.
func groupNet(id string) (singles []netip.Addr, prefixes []netip.Prefix) {
	base := netip.AddrFrom4([4]byte{10, 0, byte(slices.Index(groupIDs, id)), 0})
	addr := base
	for range 8 {
		singles = append(singles, addr)
		addr = addr.Next()
	}
	at := func(last byte, bits int) netip.Prefix {
		b := base.As4()
		b[3] = last
		return netip.PrefixFrom(netip.AddrFrom4(b), bits)
	}
	return singles, []netip.Prefix{at(16, 30), at(20, 30), at(24, 29)}
}

func subset[T any](t *rapid.T, all []T, label string) []T {
	var out []T
	for i, x := range all {
		if rapid.Bool().Draw(t, fmt.Sprintf("%s%d", label, i)) {
			out = append(out, x)
		}
	}
	return out
}

func (x *machine) group(t *rapid.T) string { return rapid.SampledFrom(groupIDs).Draw(t, "group") }
func (x *machine) key(t *rapid.T) string {
	return fmt.Sprintf("k%d", rapid.IntRange(0, 20).Draw(t, "key"))
}
func (x *machine) addr(t *rapid.T) netip.Addr {
	s, p := groupNet(x.group(t))
	return rapid.SampledFrom(append(s, p[0].Addr(), p[2].Addr().Next())).Draw(t, "addr")
}

// fill adds some complete and ready groups at the start, since random steps alone rarely lead to a busy node.
func (x *machine) fill(groups int) {
	for _, id := range groupIDs[:groups] {
		s, p := groupNet(id)
		g := Group{ID: id, Addresses: s, Prefixes: p}
		x.a.SetGroup(g)
		x.m.setGroup(g)
		x.a.SetReady(id, true)
		x.m.groups[id].ready = true
	}
}

func (x *machine) SetGroup(t *rapid.T) {
	id := x.group(t)
	s, p := groupNet(id)
	g := Group{ID: id, Index: rapid.IntRange(0, 2).Draw(t, "index"), Addresses: subset(t, s, "s"), Prefixes: subset(t, p, "p")}
	x.a.SetGroup(g)
	x.m.setGroup(g)
}

func (x *machine) SetReady(t *rapid.T) {
	id, ready := x.group(t), rapid.IntRange(0, 3).Draw(t, "ready") > 0
	x.a.SetReady(id, ready)
	if g := x.m.groups[id]; g != nil {
		g.ready = ready
	}
}

func (x *machine) Take(t *rapid.T) {
	key := x.key(t)
	got, gotOK := x.a.Take(key, x.now)
	want, wantOK := x.m.take(key, x.now)
	if got.Addr != want || gotOK != wantOK {
		t.Fatalf("Take(%s) = %v, %v, want %v, %v", key, got.Addr, gotOK, want, wantOK)
	}
	if m := x.m.addrs[want]; wantOK && (got.Group != m.group || got.Prefix != m.prefix) {
		t.Fatalf("Take(%s) = group %s, prefix %v, want group %s, prefix %v", key, got.Group, got.Prefix, m.group, m.prefix)
	}
}

func (x *machine) TakeMany(t *rapid.T) {
	for range 5 {
		x.Take(t)
	}
}

func (x *machine) Hold(t *rapid.T) {
	key, addr := x.key(t), x.addr(t)
	err := x.a.Hold(key, addr, x.now)
	if ok := x.m.hold(key, addr); (err == nil) != ok {
		t.Fatalf("Hold(%s, %v) error = %v, want success = %v", key, addr, err, ok)
	}
}

func (x *machine) Release(t *rapid.T) {
	key := x.key(t)
	x.a.Release(key, x.now)
	x.m.release(key, x.now)
}

func (x *machine) Cancel(t *rapid.T) {
	key := x.key(t)
	x.a.Cancel(key)
	x.m.cancel(key)
}

func (x *machine) Cool(t *rapid.T) {
	addr, ago := x.addr(t), time.Duration(rapid.IntRange(0, 40).Draw(t, "ago"))*time.Second
	x.a.Cool(addr, x.now.Add(-ago), x.now)
	x.m.cool(addr, x.now.Add(-ago), x.now)
}

func (x *machine) Advance(t *rapid.T) {
	x.now = x.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
	x.a.Expire(x.now)
	x.m.expire(x.now)
	if at, ok := x.a.NextExpiry(); ok && !at.After(x.now) {
		t.Fatalf("NextExpiry() = %v, want later than now %v", at, x.now)
	}
}

func (x *machine) Withdraw(t *rapid.T) {
	id, n := x.group(t), rapid.IntRange(1, 4).Draw(t, "n")
	for _, addr := range x.a.Withdraw(id, n) {
		m := x.m.addrs[addr]
		if m.group != id || m.state != free || m.prefix.IsValid() {
			t.Fatalf("withdrew %v, which is not free: %+v", addr, m)
		}
		for other, o := range x.m.addrs {
			if o.group == id && o.state == free && !o.prefix.IsValid() && (o.freed < m.freed || o.freed == m.freed && other.Less(addr)) {
				t.Fatalf("withdrew %v, but %v has been free longer", addr, other)
			}
		}
		m.state = withdrawn
	}
}

func (x *machine) WithdrawPrefixes(t *rapid.T) {
	id, n := x.group(t), rapid.IntRange(1, 2).Draw(t, "n")
	could := 0
	if g := x.m.groups[id]; g != nil {
		for p := range g.prefixes {
			if !g.gone[p] && !x.m.stays(id, p) {
				could++
			}
		}
	}
	got := x.a.WithdrawPrefixes(id, n)
	if len(got) != min(n, could) {
		t.Fatalf("withdrew %v, want %d prefixes", got, min(n, could))
	}
	for _, p := range got {
		if x.m.groups[id].gone[p] || x.m.stays(id, p) {
			t.Fatalf("withdrew %v, which is busy, withheld or withdrawn", p)
		}
		x.m.groups[id].gone[p] = true
	}
}

func (x *machine) WithdrawGroup(t *rapid.T) {
	id := x.group(t)
	err := x.a.WithdrawGroup(id)
	ok := x.m.groups[id] != nil && !x.m.stays(id, netip.Prefix{})
	if (err == nil) != ok {
		t.Fatalf("WithdrawGroup(%s) error = %v, want success = %v", id, err, ok)
	}
	if ok {
		x.m.groups[id].withdrawn = true
	}
}

func (x *machine) Withhold(t *rapid.T) {
	id := x.group(t)
	singles, p := groupNet(id)
	addrs := subset(t, []netip.Addr{singles[0], p[0].Addr(), p[0].Addr().Next(), p[1].Addr(), p[2].Addr().Next()}, "withheld")
	x.a.Withhold(id, addrs)
	x.m.withhold(id, addrs)
}

func (x *machine) Restore(t *rapid.T) {
	id := x.group(t)
	s, p := groupNet(id)
	for _, a := range s {
		p = append(p, netip.PrefixFrom(a, a.BitLen()))
	}
	x.a.Restore(p)
	g := x.m.groups[id]
	if g == nil {
		return
	}
	clear(g.gone)
	for _, addr := range s {
		if a := x.m.addrs[addr]; a != nil && a.state == withdrawn {
			a.state = free
		}
	}
	x.m.keepBack()
}

func (x *machine) Lose(t *rapid.T) {
	id := x.group(t)
	x.a.LoseGroup(id)
	if x.m.groups[id] != nil {
		x.m.unlist(id, nil)
		delete(x.m.groups, id)
	}
}

func (x *machine) check(t *rapid.T) {
	if d := cmp.Diff(x.m.dump(), dump(x.a)); d != "" {
		t.Fatalf("model and allocator differ (-model +allocator):\n%s", d)
	}
	for _, g := range x.a.Groups() {
		m := x.m.groups[g.ID]
		if g.Used != x.m.count(g.ID, netip.Prefix{}, used) || g.Cooling != x.m.count(g.ID, netip.Prefix{}, cooling) {
			t.Fatalf("counts of %s = %+v, want those of the model", g.ID, g.Counts)
		}
		avail := 0
		for _, a := range x.m.addrs {
			if a.group == g.ID && a.state == free && !m.withdrawn && !m.gone[a.prefix] {
				avail++
			}
		}
		if g.Free != avail {
			t.Fatalf("free addresses of %s = %d, want %d", g.ID, g.Free, avail)
		}
	}
}

func TestAllocatorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &machine{a: New[string](DefaultCooling), m: newModel(DefaultCooling), now: time.Unix(1000, 0)}
		x.fill(rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "groups at start"))
		t.Repeat(map[string]func(*rapid.T){
			"SetGroup": x.SetGroup, "SetReady": x.SetReady, "Take": x.Take, "TakeMany": x.TakeMany,
			"Hold": x.Hold, "Release": x.Release, "Cancel": x.Cancel, "Cool": x.Cool, "Advance": x.Advance,
			"Withdraw": x.Withdraw, "WithdrawPrefixes": x.WithdrawPrefixes, "WithdrawGroup": x.WithdrawGroup,
			"Withhold": x.Withhold, "Restore": x.Restore, "Lose": x.Lose, "": x.check,
		})
	})
}
