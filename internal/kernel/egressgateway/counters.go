package egressgateway

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Count is of packets, and of bytes from their IP headers on.
type Count struct{ Packets, Bytes uint64 }

// Counters are what went through the gateway since its namespace has Berth's table, by family, 4 or 6.
type Counters struct {
	Translated map[string]map[int]Count // by direction, Out or In
	Dropped    map[Reason]map[int]Count
}

// Counters reads them. Before the first Apply there are none.
func (k *Kernel) Counters() (Counters, error) {
	c := Counters{Translated: map[string]map[int]Count{Out: {}, In: {}}, Dropped: map[Reason]map[int]Count{}}
	for _, r := range Reasons {
		c.Dropped[r] = map[int]Count{}
	}
	conn, err := k.at.NFTables()
	if err != nil {
		return c, err
	}
	objects, err := conn.GetNamedObjects(table())
	if err != nil {
		if isNoTable(err) {
			return c, nil
		}
		return c, fmt.Errorf("list counters of nftables: %w", err)
	}
	counts := map[string]Count{}
	for _, o := range objects {
		if named, ok := o.(*nftables.NamedObj); ok {
			if n, ok := named.Obj.(*expr.Counter); ok {
				counts[named.Name] = Count{n.Packets, n.Bytes}
			}
		}
	}
	for _, of := range tunnel.Families {
		for _, direction := range []string{Out, In} {
			c.Translated[direction][tunnel.Digit(of)] = counts[counterName(direction, of)]
		}
		for _, r := range Reasons {
			c.Dropped[r][tunnel.Digit(of)] = counts[counterName(string(r), of)]
		}
	}
	return c, nil
}
