package egressgateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// setRules makes chains, sets and counters, unless they are as desired. It replaces the chains' rules in one
// transaction, and keeps sets and counters.
func setRules(conn *nftables.Conn, rules nft.Table) error {
	if rules.InKernel(conn) {
		return nil
	}
	conn.AddTable(table())
	for _, of := range tunnel.Families {
		for _, set := range []*nftables.Set{clientSet(of), destinationSet(of)} {
			if err := nft.AddSet(conn, set); err != nil {
				return fmt.Errorf("add set %s: %w", set.Name, err)
			}
		}
	}
	for _, name := range counters() {
		conn.AddObj(&nftables.NamedObj{Table: table(), Name: name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	}
	rules.Refill(conn, rules.Chains...)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set nftables table %s: %w", rules.Name, err)
	}
	return nil
}

// setDestinations sets a family's destinations in one transaction.
func setDestinations(conn *nftables.Conn, of int, list []netip.Prefix) error {
	set, want := destinationSet(of), nft.Intervals(list)
	have, err := conn.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list the set %s: %w", set.Name, err)
	}
	if nft.SameElements(have, want) {
		return nil
	}
	conn.FlushSet(set)
	if err := conn.SetAddElements(set, want); err != nil {
		return fmt.Errorf("encode elements of %s: %w", set.Name, err)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set destinations of IPv%d: %w", tunnel.Digit(of), err)
	}
	return nil
}

// listMembers lists the addresses of clients with their UIDs.
func listMembers(conn *nftables.Conn) (map[netip.Addr]string, error) {
	there := map[netip.Addr]string{}
	for _, of := range tunnel.Families {
		list, err := conn.GetSetElements(clientSet(of))
		if err != nil {
			return nil, fmt.Errorf("list the set %s: %w", clientSet(of).Name, err)
		}
		for _, e := range list {
			if a, ok := netip.AddrFromSlice(e.Key[:len(e.Key)/2]); ok {
				there[a] = e.Comment
			}
		}
	}
	return there, nil
}

// remove removes clients' addresses from the sets in one transaction.
func remove(conn *nftables.Conn, gone []netip.Addr) error {
	list := map[netip.Addr]string{}
	for _, a := range gone {
		list[a] = ""
	}
	return eachSet(conn, list, "remove", conn.SetDeleteElements)
}

// add adds clients' addresses to the sets in one transaction.
func add(conn *nftables.Conn, added map[netip.Addr]string) error {
	return eachSet(conn, added, "add", conn.SetAddElements)
}

func eachSet(conn *nftables.Conn, of map[netip.Addr]string, what string, do func(*nftables.Set, []nftables.SetElement) error) error {
	if len(of) == 0 {
		return nil
	}
	elements := map[int][]nftables.SetElement{}
	for a, uid := range of {
		elements[rtnl.FamilyOf(a)] = append(elements[rtnl.FamilyOf(a)], clientElement(a, uid))
	}
	var problems []error
	for f, list := range elements {
		for part := range slices.Chunk(list, nft.ElementChunk) {
			problems = append(problems, do(clientSet(f), part))
		}
	}
	problems = append(problems, conn.Flush())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%s %d clients' addresses in nftables: %w", what, len(of), err)
	}
	return nil
}

// isNoTable reports whether an error means that the table does not exist.
func isNoTable(err error) bool { return errors.Is(err, unix.ENOENT) }
