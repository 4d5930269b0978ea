package datapath

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// The table has what a plain map would have, whatever comes and goes.
func TestForeignTableAgainstModel(t *testing.T) {
	table, model := newForeignTable(), map[foreignKey]int{}
	dice := rand.New(rand.NewPCG(1, 2))
	for step := range 5000 {
		key := foreignKey{netip.AddrFrom4([4]byte{10, 0, 0, byte(dice.IntN(4))}), 254 + dice.IntN(2), 2 + dice.IntN(3), dice.IntN(2)}
		switch op := dice.IntN(10); {
		case op < 4:
			table.set(key, step)
			model[key] = step
		case op < 6:
			table.replace(key, step)
			maps.DeleteFunc(model, func(k foreignKey, _ int) bool {
				return k.addr == key.addr && k.table == key.table && k.priority == key.priority
			})
			model[key] = step
		case op < 9:
			table.remove(key)
			delete(model, key)
		default:
			table.removeLink(key.link)
			maps.DeleteFunc(model, func(k foreignKey, _ int) bool { return k.link == key.link })
		}
		if got := table.all(); !maps.Equal(got, model) || table.size != len(model) {
			t.Fatalf("step %d: the table has %v (size %d), want %v", step, got, table.size, model)
		}
		for k := range model {
			if got, ok := (&foreignRoutes{routes: table}).to(k.addr, k.link); ok && (got.addr != k.addr || got.link == k.link) {
				t.Fatalf("step %d: to(%s, not %d) = %+v", step, k.addr, k.link, got)
			}
		}
	}
	for link := range 5 {
		table.removeLink(link)
	}
	if len(table.byAddr)+len(table.byLink)+table.size > 0 {
		t.Errorf("left: %+v", table)
	}
}
