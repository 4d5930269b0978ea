package datapath

import (
	"maps"
	"net/netip"
)

// foreignTable are routes of other software with their protocols. What an ADD asks for, and events about links of Berth's pods, cost
// the same with any number of them.
type foreignTable struct {
	byAddr map[netip.Addr]map[foreignKey]int
	byLink map[int]int // how many
	size   int
}

func newForeignTable() *foreignTable {
	return &foreignTable{byAddr: map[netip.Addr]map[foreignKey]int{}, byLink: map[int]int{}}
}

func (t *foreignTable) set(key foreignKey, protocol int) {
	of := t.byAddr[key.addr]
	if of == nil {
		of = map[foreignKey]int{}
		t.byAddr[key.addr] = of
	}
	if _, known := of[key]; !known {
		t.size++
		t.byLink[key.link]++
	}
	of[key] = protocol
}

func (t *foreignTable) remove(key foreignKey) {
	of := t.byAddr[key.addr]
	if _, known := of[key]; !known {
		return
	}
	if delete(of, key); len(of) == 0 {
		delete(t.byAddr, key.addr)
	}
	if t.size--; t.byLink[key.link] > 1 {
		t.byLink[key.link]--
	} else {
		delete(t.byLink, key.link)
	}
}

// replace sets a route in place of those to the same address, of the same table and priority.
func (t *foreignTable) replace(key foreignKey, protocol int) {
	for k := range t.byAddr[key.addr] {
		if k.table == key.table && k.priority == key.priority {
			t.remove(k)
		}
	}
	t.set(key, protocol)
}

// removeLink removes the routes by a link.
func (t *foreignTable) removeLink(index int) {
	if t.byLink[index] == 0 {
		return
	}
	for key := range t.all() {
		if key.link == index {
			t.remove(key)
		}
	}
}

// all returns a copy of the routes.
func (t *foreignTable) all() map[foreignKey]int {
	list := make(map[foreignKey]int, t.size)
	for _, of := range t.byAddr {
		maps.Copy(list, of)
	}
	return list
}
