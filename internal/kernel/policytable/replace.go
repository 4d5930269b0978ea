package policytable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// mostAtOnce is the maximum number of elements in one transaction. With more elements, new sets are filled in advance in transactions of
// this size, because the kernel rejects messages of more than about 100 MB (EMSGSIZE).
const mostAtOnce = 1 << 18

// stage fills new sets that policies name in advance if they are too large for the main transaction. They get unique names in the kernel,
// because the table to replace may have sets with the same names.
func (t *Table) stage(tx *transaction, have, want content) error {
	if want.lists == have.lists {
		return nil
	}
	have, want = have.flat(), want.flat()
	var names []string
	elements := 0
	for _, name := range sorted(want.sets, func(name string, s set) bool {
		_, there := have.sets[name]
		return !there && len(s.ids) > 0
	}) {
		names = append(names, name)
		for _, id := range want.sets[name].ids {
			elements += count(tx.elements, id)
		}
	}
	if elements <= t.atOnce {
		return nil
	}
	suffix := make([]byte, 4)
	if _, err := rand.Read(suffix); err != nil {
		return fmt.Errorf("choose names of sets: %w", err)
	}
	tx.conn.AddTable(tx.table)
	queued := 0
	for _, name := range names {
		tx.aliases[name] = name + "." + hex.EncodeToString(suffix)
		tx.staged[name] = true
		handle := tx.handle(name, want.sets[name])
		if err := nft.AddSet(tx.conn, handle); err != nil {
			return fmt.Errorf("encode set %s: %w", name, err)
		}
		come, _ := tx.elementsOf(want.sets[name], false)
		for part := range slices.Chunk(come, nft.ElementChunk) {
			if err := tx.conn.SetAddElements(handle, part); err != nil {
				return fmt.Errorf("encode set %s: %w", name, err)
			}
			if queued += len(part); queued >= t.atOnce {
				if err := tx.conn.Flush(); err != nil {
					return fmt.Errorf("nftables: fill set %s: %w", name, err)
				}
				queued = 0
			}
		}
	}
	if err := tx.conn.Flush(); err != nil {
		return fmt.Errorf("nftables: fill sets: %w", err)
	}
	return nil
}

// replaced returns the difference between a set in the kernel and its desired elements. After a new connection to the operator, most
// elements are unchanged, and rewriting all would be too much for one transaction. Small sets are emptied instead.
func (tx transaction) replaced(handle *nftables.Set, want []nftables.SetElement) (come, gone []nftables.SetElement, err error) {
	if len(want) <= mostMerged {
		tx.conn.FlushSet(handle)
		return want, nil, nil
	}
	have, err := tx.conn.GetSetElements(handle)
	if err != nil {
		return nil, nil, fmt.Errorf("nftables: list set %s: %w", handle.Name, err)
	}
	had := map[string]bool{}
	for _, e := range have {
		had[string(e.Key)] = true
	}
	for _, e := range want {
		if !had[string(e.Key)] {
			come = append(come, e)
		}
		delete(had, string(e.Key))
	}
	for key := range had {
		gone = append(gone, nftables.SetElement{Key: []byte(key)})
	}
	return come, gone, nil
}

// clear queues the removal of everything in the kernel's table except staged sets.
func (tx transaction) clear() error {
	if len(tx.staged) == 0 {
		nft.Table{Family: tx.table.Family, Name: Name}.Remove(tx.conn)
		tx.conn.AddTable(tx.table)
		return nil
	}
	chains, err := tx.conn.ListChainsOfTableFamily(tx.table.Family)
	if err != nil {
		return fmt.Errorf("nftables: list chains: %w", err)
	}
	sets, err := tx.conn.GetSets(tx.table)
	if err != nil {
		return fmt.Errorf("nftables: list sets of table %s: %w", Name, err)
	}
	objects, err := tx.conn.GetObjects(tx.table)
	if err != nil {
		return fmt.Errorf("nftables: list counters of table %s: %w", Name, err)
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != Name })
	kept := map[string]bool{}
	for name := range tx.staged {
		kept[tx.aliases[name]] = true
	}
	for _, c := range chains {
		tx.conn.FlushChain(c)
	}
	for _, s := range sets {
		if kept[s.Name] {
			continue
		}
		if s.IsMap {
			tx.conn.FlushSet(s)
		}
		tx.conn.DelSet(s)
	}
	for _, c := range chains {
		tx.conn.DelChain(c)
	}
	for _, o := range objects {
		tx.conn.DeleteObject(o)
	}
	return nil
}

// aliased returns a rule's expression with the kernel's names of sets.
func (tx transaction) aliased(exprs nft.Exprs) nft.Exprs {
	if len(tx.aliases) == 0 {
		return exprs
	}
	exprs = slices.Clone(exprs)
	for i, e := range exprs {
		if l, ok := e.(*expr.Lookup); ok && tx.aliases[l.SetName] != "" {
			other := *l
			other.SetName = tx.aliases[l.SetName]
			exprs[i] = &other
		}
	}
	return exprs
}

// answers are the replies of ended connections by family, with the time until which they are recognized.
type answers map[int]map[string]time.Time

// recall reads the replies in the kernel's table, because replacing the table would lose them.
func (a answers) recall(conn *nftables.Conn) error {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: Name}
	there, err := nft.Table{Family: table.Family, Name: Name}.There(conn)
	if err != nil || !there {
		return err
	}
	sets, err := conn.GetSets(table)
	if err != nil {
		return fmt.Errorf("nftables: list sets of table %s: %w", Name, err)
	}
	for _, family := range families {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == endedHandle(family).Name }) {
			continue // other software removed it
		}
		known, err := conn.GetSetElements(endedHandle(family))
		if err != nil {
			return fmt.Errorf("nftables: list set %s: %w", familyName(endedSet, family), err)
		}
		for _, e := range known {
			if _, ok := decode(family, e.Key); ok {
				a.note(family, e.Key, e.Expires)
			}
		}
	}
	return nil
}

// note adds a reply of an ended connection.
func (a answers) note(family int, key []byte, expires time.Duration) {
	if a[family] == nil {
		a[family] = map[string]time.Time{}
	}
	a[family][string(key)] = time.Now().Add(expires)
}

// restore queues the replies that were read.
func (a answers) restore(conn *nftables.Conn) error {
	now := time.Now()
	for family, known := range a {
		var come []nftables.SetElement
		for key, until := range known {
			if left := until.Sub(now).Round(time.Millisecond); left > 0 {
				come = append(come, nftables.SetElement{Key: []byte(key), Timeout: left})
			} else {
				delete(known, key)
			}
		}
		if err := inChunks(come, func(part []nftables.SetElement) error { return conn.SetAddElements(endedHandle(family), part) }); err != nil {
			return fmt.Errorf("encode set %s: %w", familyName(endedSet, family), err)
		}
	}
	return nil
}

func endedHandle(family int) *nftables.Set {
	return &nftables.Set{
		Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: Name}, Name: familyName(endedSet, family),
		KeyType: endedType(family), Concatenation: true, HasTimeout: true,
	}
}

// isRefusal reports whether the kernel rejected a transaction because of its content, and so kept its state. After other errors, the
// kernel's state may differ from what was applied last.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{unix.EMSGSIZE, unix.ENOMEM, unix.ENOSPC, unix.EMLINK, unix.E2BIG}, func(e error) bool { return errors.Is(err, e) })
}
