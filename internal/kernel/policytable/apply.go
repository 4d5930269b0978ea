package policytable

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/policy"
)

// endedFor is how long packets of a connection that a policy ended are recognized: longer than a TCP
// connection tries again without an answer (tcp_retries2 of Linux, about 15 minutes).
const endedFor = 30 * time.Minute

// endedUDPFor is the same for UDP: longer than connection tracking waits for an answer (nf_conntrack_udp_timeout_stream, two
// minutes). A later flow of the other direction may have the same ports.
const endedUDPFor = 3 * time.Minute

// Table is the table in the kernel of one network namespace.
type Table struct {
	ns netns.NsHandle

	mu      sync.Mutex
	conn    *nftables.Conn // for changes; nil: none is open
	have    *content       // in the kernel; nil: unknown
	compile compiler
	base    base
}

// New returns the table of a network namespace, whose content is unknown before the first Apply.
func New(ns netns.NsHandle) *Table { return &Table{ns: ns} }

// Apply enforces the policies of the node's pods in one transaction. elements has the sets that policies name as they
// are now, and changed what of them was different at the last call. When it
// returns an error, the kernel has what it had before, and the next Apply replaces the whole table.
func (t *Table) Apply(pods []Pod, elements Elements, changed policy.SetChanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.compile.inside.refresh()
	var want content
	if err == nil {
		want, err = t.compile.content(pods, t.base)
	}
	if err != nil {
		t.have = nil // it lacks what changed
		return err
	}
	return t.commit(&want, elements, changed)
}

// ApplyElements enforces changes of sets while pods and their policies stay as they are.
func (t *Table) ApplyElements(elements Elements, changed policy.SetChanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.commit(nil, elements, changed)
}

// ErrUnknown is returned by ApplyElements if the table in the kernel is unknown. Apply must be called.
var ErrUnknown = errors.New("the policy table is unknown")

// commit changes the kernel, with mu held.
func (t *Table) commit(want *content, elements Elements, changed policy.SetChanges) (err error) {
	have := t.have
	if want == nil {
		if want = have; want == nil {
			return ErrUnknown
		}
	}
	t.have = nil
	conn, err := t.connection()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.disconnect()
		}
	}()
	tx := transaction{conn: conn, table: &nftables.Table{Family: nftables.TableFamilyINet, Name: Name}, elements: elements, changed: changed}
	if have == nil {
		nft.Table{Family: tx.table.Family, Name: Name}.Remove(conn)
		conn.AddTable(tx.table)
		have = &content{}
	}
	if err := tx.change(*have, *want); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: change table %s: %w", Name, err)
	}
	t.have = want
	return nil
}

// buffers hold the largest transaction, with some 160,000 elements of sets, and its acknowledgements, in bytes.
const buffers = 64 << 20

// connection returns the connection that stays open. To close one makes the kernel wait until what was removed before is
// freed: some 10 ms, in which nobody else changes anything.
func (t *Table) connection() (*nftables.Conn, error) {
	var err error
	if t.conn == nil {
		t.conn, err = t.open(nftables.AsLasting())
	}
	return t.conn, err
}

// disconnect closes the connection, with what is queued there and answers that were not read.
func (t *Table) disconnect() {
	if t.conn != nil {
		_ = t.conn.CloseLasting()
		t.conn = nil
	}
}

func (t *Table) open(how ...nftables.ConnOption) (*nftables.Conn, error) {
	conn, err := nftables.New(append(how, nftables.WithNetNSFd(int(t.ns)), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(buffers), c.SetReadBuffer(buffers))
	}))...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

// Remove removes the table.
func (t *Table) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.have = nil
	t.disconnect()
	conn, err := t.open()
	if err != nil {
		return err
	}
	nft.Table{Family: nftables.TableFamilyINet, Name: Name}.Remove(conn)
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nftables: remove table %s: %w", Name, err)
	}
	return nil
}

// Present tells whether the kernel has the table that was applied last, as far as its chains tell.
func (t *Table) Present() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil {
		return false, nil
	}
	conn, err := t.open()
	if err != nil {
		return false, err
	}
	all := nft.Table{Family: nftables.TableFamilyINet, Name: Name}
	if there, err := all.There(conn); err != nil || !there {
		return false, err
	}
	for _, c := range t.have.chains {
		all.Tag = c.text
		if !all.Has(conn, c.Chain) {
			return false, nil
		}
	}
	return true, nil
}

// transaction queues the messages of one change.
type transaction struct {
	conn     *nftables.Conn
	table    *nftables.Table
	elements Elements
	changed  policy.SetChanges
}

// change queues what leads from one content to another: first what is new, then what refers to it, at last the removal
// of what nothing refers to any more.
func (tx transaction) change(have, want content) error {
	newChains, oldChains := lacking(have.chains, want.chains), lacking(want.chains, have.chains)
	for _, name := range newChains {
		c := want.chains[name].Chain.Chain
		c.Table = tx.table
		tx.conn.AddChain(&c)
	}
	for _, name := range lacking(have.counters, want.counters) {
		tx.conn.AddObj(tx.counter(name))
	}
	for _, name := range sorted(want.sets, func(name string, s set) bool {
		_, there := have.sets[name]
		return !there || s.id == "" || tx.changed[s.id] != nil
	}) {
		before, there := have.sets[name]
		if err := tx.changeSet(name, before, there, want.sets[name]); err != nil {
			return fmt.Errorf("encode set %s: %w", name, err)
		}
	}
	for _, name := range sorted(want.chains, func(name string, c *chain) bool {
		before, there := have.chains[name]
		return !there || before.text != c.text
	}) {
		_, there := have.chains[name]
		tx.fill(want.chains[name], there)
	}
	for _, name := range oldChains { // their rules may jump to each other
		tx.conn.FlushChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	for _, name := range oldChains {
		tx.conn.DelChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	for _, name := range lacking(want.sets, have.sets) {
		tx.conn.DelSet(tx.handle(name, have.sets[name]))
	}
	for _, name := range lacking(want.counters, have.counters) {
		tx.conn.DeleteObject(tx.counter(name))
	}
	return nil
}

// lacking are the names of b that a lacks, in order.
func lacking[V any](a, b map[string]V) []string {
	return sorted(b, func(name string, _ V) bool {
		_, there := a[name]
		return !there
	})
}

func (tx transaction) counter(name string) nftables.Obj {
	return &nftables.CounterObj{Table: tx.table, Name: name}
}

func (tx transaction) handle(name string, s set) *nftables.Set {
	kind := s.kind
	kind.Table, kind.Name = tx.table, name
	return &kind
}

// fill queues the rules of a chain.
func (tx transaction) fill(c *chain, there bool) {
	handle := &nftables.Chain{Name: c.Name, Table: tx.table}
	if there {
		tx.conn.FlushChain(handle)
	}
	for _, r := range c.Rules {
		tx.conn.AddRule(&nftables.Rule{Table: tx.table, Chain: handle, Exprs: r.Exprs, UserData: r.UserData(c.text)})
	}
}

// changeSet queues a set, if it is new, and its elements.
func (tx transaction) changeSet(name string, before set, there bool, now set) error {
	handle := tx.handle(name, now)
	if !there {
		if err := tx.conn.AddSet(handle, nil); err != nil {
			return err
		}
	}
	var gone, come []nftables.SetElement
	switch {
	case now.id == "":
		gone, come = now.differ(before)
	case there && tx.changed[now.id] == nil:
		return nil
	case there && !tx.changed[now.id].Whole:
		for e, came := range tx.changed[now.id].Elements {
			if key, ok := now.key(e); ok && came {
				come = append(come, nftables.SetElement{Key: key})
			} else if ok {
				gone = append(gone, nftables.SetElement{Key: key})
			}
		}
	default:
		if there {
			tx.conn.FlushSet(handle)
		}
		tx.elements(now.id, func(e policy.Element) {
			if key, ok := now.key(e); ok {
				come = append(come, nftables.SetElement{Key: key})
			}
		})
	}
	for part := range slices.Chunk(gone, nft.ElementChunk) {
		if err := tx.conn.SetDeleteElements(handle, part); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(come, nft.ElementChunk) {
		if err := tx.conn.SetAddElements(handle, part); err != nil {
			return err
		}
	}
	return nil
}
