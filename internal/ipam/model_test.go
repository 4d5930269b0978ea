package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// model is a simple implementation of the allocator, regardless of speed: it keeps every address in one map, and sorts all
// of them for each choice.
type model struct {
	period time.Duration
	seq    int
	groups map[string]*modelGroup
	addrs  map[netip.Addr]*modelAddr
	rested map[netip.Addr]time.Time
}

type modelGroup struct {
	index            int
	ready, withdrawn bool
	gone             map[netip.Prefix]bool // withdrawn prefixes
	withheld         map[netip.Addr]bool
	prefixes         map[netip.Prefix]bool
}

type modelAddr struct {
	group  string // empty: not listed
	prefix netip.Prefix
	state  state
	key    string
	since  time.Time
	freed  int
}

func newModel(period time.Duration) *model {
	return &model{period: period, groups: map[string]*modelGroup{}, addrs: map[netip.Addr]*modelAddr{}, rested: map[netip.Addr]time.Time{}}
}

func (m *model) count(group string, prefix netip.Prefix, s state) (n int) {
	for _, a := range m.addrs {
		if a.group == group && a.state == s && (prefix == netip.Prefix{} || a.prefix == prefix) {
			n++
		}
	}
	return n
}

func (m *model) assignable(a *modelAddr) bool {
	g := m.groups[a.group]
	return g != nil && g.ready && !g.withdrawn && !g.gone[a.prefix] && a.state == free
}

// choose sorts every assignable address by the order of the package comment.
func (m *model) choose() (netip.Addr, bool) {
	first := map[string]netip.Addr{} // used addresses of each group
	for addr, a := range m.addrs {
		if have, ok := first[a.group]; m.assignable(a) && (!ok || m.inGroup(addr, have) < 0) {
			first[a.group] = addr
		}
	}
	if len(first) == 0 {
		return netip.Addr{}, false
	}
	return slices.MinFunc(slices.Collect(maps.Values(first)), func(x, y netip.Addr) int {
		a, b := m.addrs[x], m.addrs[y]
		return cmp.Or(
			cmp.Compare(m.count(b.group, netip.Prefix{}, used), m.count(a.group, netip.Prefix{}, used)),
			cmp.Compare(m.groups[a.group].index, m.groups[b.group].index),
			cmp.Compare(a.freed, b.freed), cmp.Compare(a.group, b.group))
	}), true
}

// inGroup orders two assignable addresses of one group.
func (m *model) inGroup(x, y netip.Addr) int {
	a, b := m.addrs[x], m.addrs[y]
	if a.prefix.IsValid() != b.prefix.IsValid() {
		return map[bool]int{true: -1, false: 1}[a.prefix.IsValid()]
	}
	if a.prefix != b.prefix {
		return cmp.Or(cmp.Compare(m.count(b.group, b.prefix, used), m.count(a.group, a.prefix, used)),
			a.prefix.Addr().Compare(b.prefix.Addr()))
	}
	return cmp.Or(cmp.Compare(a.freed, b.freed), x.Compare(y))
}

func (m *model) holder(key string) (netip.Addr, bool) {
	for addr, a := range m.addrs {
		if a.state == used && a.key == key {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

func (m *model) take(key string, now time.Time) (netip.Addr, bool) {
	if addr, ok := m.holder(key); ok {
		return addr, true
	}
	m.expire(now)
	addr, ok := m.choose()
	if ok {
		a := m.addrs[addr]
		a.state, a.key, a.since = used, key, now
	}
	return addr, ok
}

func (m *model) hold(key string, addr netip.Addr) bool {
	if h, ok := m.holder(key); ok {
		return h == addr
	}
	a := m.addrs[addr]
	if a == nil {
		a = &modelAddr{}
		m.addrs[addr] = a
	}
	if a.state == used {
		return false
	}
	a.state, a.key = used, key
	return true
}

func (m *model) release(key string, now time.Time) {
	if addr, ok := m.holder(key); ok {
		a := m.addrs[addr]
		a.state, a.key, a.since = cooling, "", now
	}
}

func (m *model) cancel(key string) {
	if addr, ok := m.holder(key); ok {
		a := m.addrs[addr]
		a.state, a.key = free, ""
		if a.group == "" {
			delete(m.addrs, addr)
		}
	}
	m.keepBack()
}

// withhold replaces the withheld addresses of a group.
func (m *model) withhold(group string, addrs []netip.Addr) {
	g := m.groups[group]
	if g == nil {
		return
	}
	before := g.withheld
	g.withheld = map[netip.Addr]bool{}
	for _, addr := range addrs {
		g.withheld[addr] = true
	}
	for _, addr := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		if a := m.addrs[addr]; a != nil && !g.withheld[addr] && a.group == group && a.state == withheld {
			m.seq++
			a.state, a.freed = free, m.seq
		}
	}
	m.keepBack()
}

// keepBack withholds free addresses on the withheld list.
func (m *model) keepBack() {
	for addr, a := range m.addrs {
		if g := m.groups[a.group]; g != nil && g.withheld[addr] && a.state == free {
			a.state = withheld
		}
	}
}

func (m *model) cool(addr netip.Addr, since, now time.Time) {
	a := m.addrs[addr]
	over := !since.Add(m.period).After(now)
	switch {
	case a != nil && (a.state == used || a.state == cooling && (over || !since.After(a.since))):
		return
	case over && a != nil:
		m.seq++
		a.freed = m.seq
		return
	case over:
		if !since.Before(m.rested[addr]) {
			m.rested[addr] = since
		}
		return
	}
	if a == nil {
		a = &modelAddr{}
		m.addrs[addr] = a
	}
	a.state, a.since = cooling, since
}

func (m *model) expire(now time.Time) {
	var over []netip.Addr
	for addr, a := range m.addrs {
		if a.state == cooling && !a.since.Add(m.period).After(now) {
			over = append(over, addr)
		}
	}
	slices.SortFunc(over, func(x, y netip.Addr) int {
		return cmp.Or(m.addrs[x].since.Compare(m.addrs[y].since), x.Compare(y))
	})
	for _, addr := range over {
		a := m.addrs[addr]
		if a.group == "" {
			delete(m.addrs, addr)
			continue
		}
		m.seq++
		a.state, a.freed = free, m.seq
	}
	m.keepBack()
}

func (m *model) setGroup(g Group) {
	own := m.groups[g.ID]
	if own == nil {
		own = &modelGroup{gone: map[netip.Prefix]bool{}}
		m.groups[g.ID] = own
	}
	own.index = g.Index
	former := own.prefixes
	own.prefixes = map[netip.Prefix]bool{}
	want := map[netip.Addr]netip.Prefix{}
	for _, addr := range g.Addresses {
		want[addr] = netip.Prefix{}
	}
	for _, p := range g.Prefixes {
		own.prefixes[p] = true
		for addr := p.Addr(); p.Contains(addr); addr = addr.Next() {
			want[addr] = p
		}
	}
	for p := range former {
		if !own.prefixes[p] {
			delete(own.gone, p)
		}
	}
	m.unlist(g.ID, want)
	m.seq++
	for addr, p := range want {
		a := m.addrs[addr]
		if a == nil {
			a = &modelAddr{freed: m.seq}
			m.addrs[addr] = a
		}
		a.group, a.prefix = g.ID, p
	}
	m.keepBack()
	recorded := slices.SortedFunc(maps.Keys(m.rested), func(x, y netip.Addr) int {
		return cmp.Or(m.rested[x].Compare(m.rested[y]), x.Compare(y))
	})
	for _, addr := range recorded {
		if _, listed := want[addr]; listed {
			m.seq++
			m.addrs[addr].freed = m.seq
			delete(m.rested, addr)
		}
	}
}

func (m *model) unlist(group string, keep map[netip.Addr]netip.Prefix) {
	for addr, a := range m.addrs {
		if p, ok := keep[addr]; a.group != group || ok && p == a.prefix {
			continue
		}
		a.group, a.prefix = "", netip.Prefix{}
		if a.state == free || a.state == withdrawn || a.state == withheld {
			delete(m.addrs, addr)
		}
	}
}

func (m *model) busy(group string, p netip.Prefix) int {
	return m.count(group, p, used) + m.count(group, p, cooling)
}

// stays reports whether somebody has an address of the group or prefix.
func (m *model) stays(group string, p netip.Prefix) bool {
	return m.busy(group, p)+m.count(group, p, withheld) > 0
}

// dump writes the observable state, for comparison.
func (m *model) dump() []string {
	var out []string
	for addr, a := range m.addrs {
		g := m.groups[a.group]
		back := a.state == withdrawn || a.state == withheld || g != nil && (g.withdrawn || a.prefix.IsValid() && g.gone[a.prefix])
		out = append(out, line(addr, a.group, a.prefix, g != nil && g.ready, a.state == used, a.state == cooling, back, a.key))
	}
	slices.Sort(out)
	return out
}

func dump(a *Allocator[string]) []string {
	var out []string
	for v := range a.Addresses() {
		out = append(out, line(v.Addr, v.Group, v.Prefix, v.Ready, v.Used, v.Cooling, v.Withdrawn, v.Key))
	}
	slices.Sort(out)
	return out
}

func line(addr netip.Addr, group string, p netip.Prefix, ready, held, cool, back bool, key string) string {
	return fmt.Sprintf("%v group=%s prefix=%v ready=%v used=%v cooling=%v withdrawn=%v key=%s", addr, group, p, ready, held, cool, back, key)
}
