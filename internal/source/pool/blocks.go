package pool

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
)

// blockFacts is what matters of an AddressBlock.
type blockFacts struct {
	name, pool string
	uid        types.UID
	request    types.UID    // that it was cut for
	first      netip.Prefix // IPv4 if the pool has it
	second     netip.Prefix // the IPv6 one of a dual-stack pool
	draining   bool         // it is being deleted: no new address from it
	version    string       // resourceVersion
	finalizers []string
	withheld   []withheldRange
}

// readBlock takes what matters of an AddressBlock.
func readBlock(o *v1alpha1.AddressBlock) (blockFacts, error) {
	b := blockFacts{
		name: o.Name, pool: o.PoolName, uid: o.UID, request: o.RequestUID,
		draining: o.DeletionTimestamp != nil, version: o.ResourceVersion, finalizers: o.Finalizers, withheld: readWithheld(o.Withheld),
	}
	v4, err := readPrefix("ipv4", o.IPv4, netip.Addr.Is4)
	if err != nil {
		return b, err
	}
	v6, err := readPrefix("ipv6", o.IPv6, netip.Addr.Is6)
	if err != nil {
		return b, err
	}
	return b.with(v4, v6)
}

// with is b with these prefixes, of which one may be zero.
func (b blockFacts) with(v4, v6 netip.Prefix) (blockFacts, error) {
	b.first, b.second = v4, v6
	if !v4.IsValid() {
		b.first, b.second = v6, netip.Prefix{}
	}
	switch {
	case !b.first.IsValid():
		return b, errors.New("ipv4, ipv6: expected at least one of them")
	case b.second.IsValid() && 32-b.first.Bits() != 128-b.second.Bits():
		return b, fmt.Errorf("ipv4 %s and ipv6 %s: expected as many addresses in both", b.first, b.second)
	}
	return b, nil
}

func readPrefix(field, s string, family func(netip.Addr) bool) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || !family(p.Addr()) || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s: %q: expected a CIDR of that family without host bits", field, s)
	}
	return p, nil
}

// prefixes are the block's, IPv4 first.
func (b blockFacts) prefixes() []netip.Prefix {
	if b.second.IsValid() {
		return []netip.Prefix{b.first, b.second}
	}
	return []netip.Prefix{b.first}
}

// same tells whether both are the same object with the same addresses.
func (b blockFacts) same(o blockFacts) bool {
	return b.name == o.name && b.uid == o.uid && b.pool == o.pool && b.first == o.first && b.second == o.second
}

// place finds an address of either family: the one of the first family that it
// goes with.
func (b blockFacts) place(a netip.Addr) (first netip.Addr, ok bool) {
	switch {
	case b.first.Contains(a):
		return a, true
	case b.second.IsValid() && b.second.Contains(a):
		return at(a, b.second, b.first), true
	}
	return netip.Addr{}, false
}

// addresses are those that go with one of the first family.
func (b blockFacts) addresses(first netip.Addr) []netip.Addr {
	if b.second.IsValid() {
		return []netip.Addr{first, at(first, b.first, b.second)}
	}
	return []netip.Addr{first}
}

func (b blockFacts) overlaps(o blockFacts) bool {
	for _, p := range b.prefixes() {
		if slices.ContainsFunc(o.prefixes(), p.Overlaps) {
			return true
		}
	}
	return false
}

// A releaseStep is how far a block has come on its way back. It is withdrawn in
// memory, then from the file, then its routes are removed, and only then may its
// finalizer go: what was begun before a crash is begun again after it, and nothing
// is handed out from a block that the operator may give to another node.
type releaseStep int

const (
	notReleased releaseStep = iota
	withdrawn               // no address of it is used or cools, and none will be handed out
	cleared                 // besides, the file and the data path do not have it
)

// heldBlock is a block of this node and how far it has come.
type heldBlock struct {
	blockFacts
	listed     bool        // the API server has it; false: only the file, or pods, do
	lost       bool        // the API server has it no more; it is kept for the pods that have addresses of it
	programmed bool        // the file has it, and the data path
	returning  bool        // it is to go back: nothing is handed out from it
	release    releaseStep // how far it has come back
	emptySince time.Time   // zero while an address of it is used or cools
	conflict   string      // a block of this node with the same addresses, which came first
	down       string      // why the file or the data path does not have it
	unroutable bool        // the data path has others, and not this one
}

// serves tells whether addresses of the block may be handed out.
func (h *heldBlock) serves() bool { return h.programmed && !h.ends() && h.conflict == "" }

// ends tells whether the block is on its way out: nothing more is handed out from it.
func (h *heldBlock) ends() bool { return h.deleted() || h.returning || h.lost }

// deleted tells whether the block is at some step of its deletion.
func (h *heldBlock) deleted() bool { return h.draining || h.release != notReleased }

// setBlock takes a block that the API server, or the file, says this node has.
func (l *ledger) setBlock(f blockFacts, listed bool, now time.Time) {
	h, ok := l.blocks[f.name]
	if ok && !h.same(f) {
		l.removeBlock(f.name, now)
		ok = false
	}
	if !ok {
		h = &heldBlock{}
		l.blocks[f.name] = h
	}
	told := ok && slices.Equal(h.withheld, f.withheld)
	h.blockFacts, h.listed, h.lost = f, listed, false
	switch {
	case !ok:
		l.addToAllocator(h, now)
	case !told:
		l.withhold(h)
	}
	l.refresh(h)
}

// addToAllocator takes a block's addresses into its pool's allocator, those first that
// are held or cool already.
func (l *ledger) addToAllocator(h *heldBlock, now time.Time) {
	h.conflict = ""
	for _, name := range l.blockNames() {
		if o := l.blocks[name]; o != h && o.conflict == "" && o.overlaps(h.blockFacts) {
			h.conflict = name
			return
		}
	}
	s := l.pool(h.pool)
	for key, lease := range l.leases {
		for _, a := range lease.Addrs() {
			if first, ok := h.place(a); ok && lease.allocatedIn == "" {
				if err := s.alloc.Hold(key, first, now); err == nil {
					lease.allocatedIn, lease.Pool, lease.Block = s.name, s.name, h.name
					l.leases[key] = lease
				}
				break
			}
		}
	}
	for a, since := range l.unlisted {
		if first, ok := h.place(a); ok {
			s.alloc.Cool(first, since, now)
		}
	}
	s.alloc.SetGroup(ipam.Group{ID: h.name, Prefixes: []netip.Prefix{h.first}})
	l.withhold(h)
}

// refresh tells the allocator whether a block's addresses may be handed out.
func (l *ledger) refresh(h *heldBlock) {
	if h.conflict != "" {
		return
	}
	l.pool(h.pool).alloc.SetReady(h.name, h.serves())
	l.usable = l.usable || h.serves()
}

// loseBlock takes that the API server does not have a block any more. It should
// be on its way out; if pods have addresses of it, somebody took it from under
// them, and it stays for them.
func (l *ledger) loseBlock(name string, now time.Time) (pods int) {
	h, ok := l.blocks[name]
	if !ok {
		return 0
	}
	if pods = l.usedIn(h); pods > 0 {
		h.listed, h.lost, h.finalizers = false, true, nil
		l.refresh(h)
		return pods
	}
	l.removeBlock(name, now)
	return 0
}

// removeBlock forgets a block. What of it is held or cools is remembered
// without it.
func (l *ledger) removeBlock(name string, now time.Time) {
	h := l.blocks[name]
	delete(l.blocks, name)
	if h.conflict != "" {
		return
	}
	l.dropFromAllocator(h)
	for _, other := range l.blockNames() {
		if o := l.blocks[other]; o.conflict == name {
			l.addToAllocator(o, now)
			l.refresh(o)
		}
	}
}

// dropFromAllocator takes a block's addresses out of its pool's allocator.
func (l *ledger) dropFromAllocator(h *heldBlock) {
	s := l.pool(h.pool)
	var held []attachment.Key
	for v := range s.alloc.Busied() {
		if v.Group != h.name {
			continue
		}
		if v.Used {
			held = append(held, v.Key)
			continue
		}
		for _, a := range h.addresses(v.Addr) {
			l.unlisted[a] = v.Since
		}
	}
	for _, key := range held {
		s.alloc.Cancel(key)
		lease := l.leases[key]
		lease.allocatedIn = ""
		l.leases[key] = lease
	}
	s.alloc.LoseGroup(h.name)
}

// counts are the numbers of a block's addresses.
func (l *ledger) counts(h *heldBlock) ipam.Counts {
	return l.pool(h.pool).alloc.Count(h.name)
}

// usedIn counts the pods that have addresses of a block.
func (l *ledger) usedIn(h *heldBlock) int {
	if h.conflict != "" {
		return 0
	}
	return l.counts(h).Used
}

// review looks what became of the blocks: which are empty since when, and which
// are at their end.
func (l *ledger) review(now time.Time) {
	for name, h := range l.blocks {
		busy := 0
		if h.conflict == "" {
			c := l.counts(h)
			busy = c.Used + c.Cooling
		}
		switch {
		case busy > 0:
			h.emptySince = time.Time{}
		case h.lost:
			l.removeBlock(name, now)
			continue
		case h.emptySince.IsZero():
			h.emptySince = now
		}
		if busy == 0 && h.draining && h.listed && h.release == notReleased {
			h.release = withdrawn
			l.refresh(h)
		}
	}
}

// uncommitted tells whether the file or the data path has something else than
// wanted says.
func (l *ledger) uncommitted() bool {
	for _, h := range l.blocks {
		if h.release == withdrawn || h.release == notReleased && h.conflict == "" && !h.programmed {
			return true
		}
	}
	return false
}

// wanted lists the blocks that the file and the data path are to have.
func (l *ledger) wanted() []blockFacts {
	return l.factsOf(func(h *heldBlock) bool { return h.release == notReleased && h.conflict == "" })
}

// withdrawnNow lists the blocks that the file and the data path are to lose.
func (l *ledger) withdrawnNow() []blockFacts {
	return l.factsOf(func(h *heldBlock) bool { return h.release == withdrawn })
}

// toRenew lists the blocks that are kept by saying that this node lives.
func (l *ledger) toRenew() []blockFacts {
	return l.factsOf(func(h *heldBlock) bool { return l.node.missing() && h.listed && h.release == notReleased })
}

// factsOf lists blocks, by name.
func (l *ledger) factsOf(is func(*heldBlock) bool) []blockFacts {
	out := []blockFacts{}
	for _, name := range l.blockNames() {
		if h := l.blocks[name]; is(h) {
			out = append(out, h.blockFacts)
		}
	}
	return out
}

// each calls do with the node's blocks that are those of list.
func (l *ledger) each(list []blockFacts, do func(*heldBlock)) {
	for _, b := range list {
		if h, ok := l.blocks[b.name]; ok && h.same(b) {
			do(h)
			l.refresh(h)
		}
	}
}

func (l *ledger) blockNames() []string { return slices.Sorted(maps.Keys(l.blocks)) }
