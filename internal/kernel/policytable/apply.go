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
	conn    *nftables.Conn    // for changes; nil: none is open
	have    *content          // in the kernel; nil: unknown
	changes uint64            // how often the kernel was changed
	missed  policy.SetChanges // what the kernel refused since then
	answers answers
	compile compiler
	base    base
	atOnce  int // elements in a transaction; see mostAtOnce

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

// Apply enforces the policies of the node's pods in one transaction. elements has the sets that policies name as they
// are now, and changed what of them was different at the last call. When it
// returns an error, the kernel has what it had before, and the next Apply replaces the whole table unless it is known what that is.
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
		t.have = nil // it lacks what changed
		return err
	}
	return t.commit(&want, elements, changed)
}

// ApplyElements enforces changes of sets while pods and their policies stay as they are. If it returns ErrUnknown, nothing
// changed.
func (t *Table) ApplyElements(elements Elements, changed policy.SetChanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil || t.missed != nil || t.compile.unions.outgrown(t.have, elements, changed) != nil {
		return ErrUnknown
	}
	return t.commit(nil, elements, changed)
}

// ErrUnknown is returned by ApplyElements if the table in the kernel is unknown, or has to become another. Apply must be called
// with the same changes.
var ErrUnknown = errors.New("the policy table is unknown")

// withMissed adds changes to those that the kernel refused.
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

// queue queues what leads from one content to another; nil: nothing is known about what the kernel has.
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

// connection returns the connection that stays open. To close one makes the kernel wait until what was removed before is
// freed: some 10 ms, in which nobody else changes anything.
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

// disconnect closes the connection, with what is queued there and answers that were not read.
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

// Present tells whether the kernel has the table that was applied last, as far as its chains tell.
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
	aliases  map[string]string // names of sets in the kernel, if they are others
	staged   map[string]bool   // sets that were filled before
}

// change queues what leads from one content to another: first what is new, then what refers to it, at last the removal
// of what nothing refers to any more.
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

// changes tells whether a set that policies name has changed. Few sets change at a time, and a union may be of many.
func (tx transaction) changes(s set) bool {
	for id := range tx.changed {
		if s.has(id) {
			return true
		}
	}
	return false
}

// replaces tells whether a set is filled again.
func (tx transaction) replaces(s set) bool {
	for id, change := range tx.changed {
		if change.Whole && s.has(id) {
			return true
		}
	}
	return false
}

// elementsOf returns which elements come to a set that policies name, and which go.
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
		if len(s.ids) > 1 && len(going) > 0 { // others of the sets may have them
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
