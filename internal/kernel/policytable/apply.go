package policytable

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// endedFor is how long packets of a connection that a policy ended are recognized: longer than TCP
// retransmits without an answer (tcp_retries2 of Linux, about 15 minutes).
const endedFor = 30 * time.Minute

// endedUDPFor is the same for UDP: longer than connection tracking waits for an answer (nf_conntrack_udp_timeout_stream, two
// minutes), but short, because a later flow in the other direction may use the same ports.
const endedUDPFor = 3 * time.Minute

// Table is the policy table of one network namespace in the kernel.
type Table struct {
	ns netns.NsHandle

	mu      sync.Mutex
	conn    *nftables.Conn    // for changes; nil if closed
	have    *content          // in the kernel; nil if unknown
	changes uint64            // number of changes of the kernel
	missed  policy.SetChanges // changes that the kernel has rejected since
	answers answers
	compile compiler
	base    base
	atOnce  int // maximum number of elements in a transaction; see mostAtOnce

	tracking
	subscription subscription
}

// New returns the table of a network namespace, whose content is unknown before the first Apply.
func New(ns netns.NsHandle) *Table {
	return newTable(ns, nil)
}

func newTable(ns netns.NsHandle, i *inside) *Table {
	return &Table{
		ns: ns, answers: answers{}, compile: compiler{inside: i, unions: newUnions()}, atOnce: mostAtOnce, tracking: tracking{ns: ns},
	}
}

// Apply enforces the policies of the node's pods in one transaction. elements has the current content of the sets that
// policies name, and changed the differences from the last call. If it returns an error, the kernel keeps its previous
// state, and the next Apply replaces the whole table unless that state is known.
func (t *Table) Apply(pods []Pod, elements Elements, changed policy.SetChanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = t.withMissed(changed)
	if t.have != nil {
		t.compile.outgrew(t.compile.unions.outgrown(t.have, elements, changed))
	}
	err := t.compile.inside.refresh()
	var want content
	if err == nil {
		t.compile.unions.begin(elements)
		want, err = t.compile.content(pods, t.base)
	}
	if err != nil {
		t.have = nil // it lacks the changes
		return err
	}
	return t.commit(&want, elements, changed)
}

// ApplyElements enforces changes of sets if pods and their policies are unchanged. If it returns ErrUnknown, it has changed
// nothing.
func (t *Table) ApplyElements(elements Elements, changed policy.SetChanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil || t.missed != nil || t.compile.unions.outgrown(t.have, elements, changed) != nil {
		return ErrUnknown
	}
	return t.commit(nil, elements, changed)
}

// ErrUnknown is returned by ApplyElements if the state of the table in the kernel is unknown, or its chains must change. The
// caller must then call Apply with the same changes.
var ErrUnknown = errors.New("the policy table is unknown")

// withMissed adds changes to those that the kernel has rejected.
func (t *Table) withMissed(changed policy.SetChanges) policy.SetChanges {
	if t.missed == nil {
		return changed
	}
	for id, c := range changed {
		t.missed.Of(id).Then(c)
	}
	return t.missed
}

// commit changes the kernel, with mu held.
func (t *Table) commit(want *content, elements Elements, changed policy.SetChanges) (err error) {
	have := t.have
	if want == nil {
		want = have
	}
	t.have, t.missed = nil, nil
	t.changes++
	conn, err := t.connection()
	if err != nil {
		return err
	}
	tx := transaction{
		conn: conn, table: &nftables.Table{Family: nftables.TableFamilyINet, Name: Name},
		elements: elements, changed: changed, aliases: map[string]string{}, staged: map[string]bool{},
	}
	defer func() {
		if err == nil {
			return
		}
		t.disconnect()
		if isRefusal(err) && have != nil && len(tx.staged) == 0 {
			t.have, t.missed = have, policy.SetChanges{}
			t.missed = t.withMissed(changed)
		}
	}()
	if err := t.queue(tx, have, want); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: change table %s: %w", Name, err)
	}
	for name, alias := range tx.aliases {
		if _, used := want.lists.sets[name]; used {
			want.aliases[name] = alias
		}
	}
	t.have = want
	return nil
}

// queue queues the difference between two contents; have is nil if the kernel's state is unknown.
func (t *Table) queue(tx transaction, have, want *content) error {
	if have != nil {
		maps.Copy(tx.aliases, have.aliases)
		if err := t.stage(&tx, *have, *want); err != nil {
			return err
		}
		return tx.change(*have, *want)
	}
	if err := errors.Join(t.answers.recall(tx.conn), t.stage(&tx, content{}, *want)); err != nil {
		return err
	}
	if err := tx.clear(); err != nil {
		return err
	}
	return errors.Join(tx.change(content{}, *want), t.answers.restore(tx.conn))
}

// buffers hold the largest transaction, with some 160,000 elements of sets, and its acknowledgements, in bytes.
const buffers = 64 << 20

// connection returns the connection, which stays open. Closing it makes the kernel wait until removed objects are freed:
// about 10 ms, in which nobody else can change anything.
func (t *Table) connection() (*nftables.Conn, error) {
	if t.conn != nil {
		return t.conn, nil
	}
	var portID uint32
	conn, err := t.open(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		portID = c.PID()
		return nil
	}))
	if err != nil {
		return nil, err
	}
	t.conn = conn
	t.subscription.ignore(portID)
	return conn, nil
}

// disconnect closes the connection, and drops queued messages and unread answers.
func (t *Table) disconnect() {
	if t.conn != nil {
		t.subscription.ignore(0) // another program may get the port ID
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
	t.have, t.missed, t.answers = nil, nil, answers{}
	t.disconnect()
	t.tracking.close(false)
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

// Present reports whether the kernel has the chains of the table that was applied last.
func (t *Table) Present() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil {
		return false, nil
	}
	return t.present(t.have.flat())
}

func (t *Table) present(have content) (bool, error) {
	conn, err := t.open()
	if err != nil {
		return false, err
	}
	all := nft.Table{Family: nftables.TableFamilyINet, Name: Name}
	if there, err := all.There(conn); err != nil || !there {
		return false, err
	}
	for _, c := range have.chains {
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
	aliases  map[string]string // names of sets in the kernel, where they differ
	staged   map[string]bool   // sets that are already filled
}

// change queues the difference between two contents: new objects first, then references to them, and last the removal of
// objects without references.
func (tx transaction) change(have, want content) error {
	if have.lists == nil || have.lists != want.lists {
		return tx.differ(have.flat(), want.flat())
	}
	var changed []string
	if len(tx.changed) > 0 {
		changed = sorted(want.lists.sets, func(_ string, s set) bool { return tx.changes(s) })
	}
	for _, name := range changed {
		if err := tx.changeSet(name, set{}, true, want.lists.sets[name]); err != nil {
			return fmt.Errorf("encode set %s: %w", name, err)
		}
	}
	return tx.differ(have, want)
}

func (tx transaction) differ(have, want content) error {
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
		return !there || len(s.ids) == 0 && !s.fixed || tx.changes(s)
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
	for _, name := range lacking(want.sets, have.sets) { // maps lead to chains
		handle := tx.handle(name, have.sets[name])
		if handle.IsMap {
			tx.conn.FlushSet(handle)
		}
		tx.conn.DelSet(handle)
	}
	for _, name := range oldChains {
		tx.conn.DelChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	for _, name := range lacking(want.counters, have.counters) {
		tx.conn.DeleteObject(tx.counter(name))
	}
	return nil
}

// lacking returns the names in b that a lacks, sorted.
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
	kind.Table, kind.Name = tx.table, cmp.Or(tx.aliases[name], name)
	return &kind
}

// fill queues the rules of a chain.
func (tx transaction) fill(c *chain, there bool) {
	handle := &nftables.Chain{Name: c.Name, Table: tx.table}
	if there {
		tx.conn.FlushChain(handle)
	}
	for _, r := range c.Rules {
		tx.conn.AddRule(&nftables.Rule{Table: tx.table, Chain: handle, Exprs: tx.aliased(r.Exprs), UserData: r.UserData(c.text)})
	}
}

// changeSet queues a set, if it is new, and its elements.
func (tx transaction) changeSet(name string, before set, there bool, now set) error {
	if tx.staged[name] {
		return nil
	}
	handle := tx.handle(name, now)
	if !there {
		if err := nft.AddSet(tx.conn, handle); err != nil {
			return err
		}
	}
	var gone, come []nftables.SetElement
	if len(now.ids) == 0 {
		gone, come = now.differ(before)
	} else {
		come, gone = tx.elementsOf(now, there)
		if there && tx.replaces(now) {
			var err error
			if come, gone, err = tx.replaced(handle, come); err != nil {
				return err
			}
		}
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

// changes reports whether a set that policies name has changed. It iterates over the changes, because few sets change at a time,
// and a union may consist of many.
func (tx transaction) changes(s set) bool {
	for id := range tx.changed {
		if s.has(id) {
			return true
		}
	}
	return false
}

// replaces reports whether a set is filled again.
func (tx transaction) replaces(s set) bool {
	for id, change := range tx.changed {
		if change.Whole && s.has(id) {
			return true
		}
	}
	return false
}

// elementsOf returns the elements to add to and to remove from a set that policies name.
func (tx transaction) elementsOf(s set, there bool) (come, gone []nftables.SetElement) {
	coming, going := map[policy.Element]bool{}, map[policy.Element]bool{}
	if there && !tx.replaces(s) {
		for _, id := range s.ids {
			if tx.changed[id] == nil {
				continue
			}
			for e, came := range tx.changed[id].Elements {
				if came {
					coming[e] = true
				} else {
					going[e] = true
				}
			}
		}
		if len(s.ids) > 1 && len(going) > 0 { // other sets of the union may have them
			for _, id := range s.ids {
				tx.elements(id, func(e policy.Element) { delete(going, e) })
			}
		}
		return s.encode(coming), s.encode(going)
	}
	if len(s.ids) == 1 {
		tx.elements(s.ids[0], func(e policy.Element) { come = s.append(come, e) })
		return come, nil
	}
	for _, id := range s.ids {
		tx.elements(id, func(e policy.Element) { coming[e] = true })
	}
	return s.encode(coming), nil
}

func (s set) encode(elements map[policy.Element]bool) (list []nftables.SetElement) {
	for e := range elements {
		list = s.append(list, e)
	}
	return list
}

// append adds an element if it is of the set's family.
func (s set) append(to []nftables.SetElement, e policy.Element) []nftables.SetElement {
	if key, ok := s.key(e); ok {
		to = append(to, nftables.SetElement{Key: key})
	}
	return to
}
