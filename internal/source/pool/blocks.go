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
)

// blockFacts is what matters of an AddressBlock.
type blockFacts struct {
	name, pool string
	uid        types.UID
	request    types.UID    // for which it was cut
	first      netip.Prefix // IPv4 if the pool has it
	second     netip.Prefix // the IPv6 one of a dual-stack pool
	draining   bool         // it is being deleted: none of its addresses are handed out
	version    string       // resourceVersion
	finalizers []string
	withheld   []withheldRange
}

// readBlock validates an AddressBlock and keeps what matters of it.
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

// with returns b with these prefixes, one of which may be zero.
func (b blockFacts) with(v4, v6 netip.Prefix) (blockFacts, error) {
	b.first, b.second = v4, v6
	if !v4.IsValid() {
		b.first, b.second = v6, netip.Prefix{}
	}
	switch {
	case !b.first.IsValid():
		return b, errors.New("ipv4, ipv6: expected at least one of them")
	case b.second.IsValid() && 32-b.first.Bits() != 128-b.second.Bits():
		return b, fmt.Errorf("ipv4 %s and ipv6 %s: expected equally many addresses in both", b.first, b.second)
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

// same reports whether both are the same object with the same addresses.
func (b blockFacts) same(o blockFacts) bool {
	return b.name == o.name && b.uid == o.uid && b.pool == o.pool && b.first == o.first && b.second == o.second
}

// place returns, for an address of either family, the address of the first family in its pair.
func (b blockFacts) place(a netip.Addr) (first netip.Addr, ok bool) {
	switch {
	case b.first.Contains(a):
		return a, true
	case b.second.IsValid() && b.second.Contains(a):
		return at(a, b.second, b.first), true
	}
	return netip.Addr{}, false
}

// addresses returns the pair of an address of the first family.
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

// A releaseStep is how far the return of a block has come. The block is withdrawn in memory, then removed from the file,
// then its routes are removed, and only then its finalizer: a daemon that crashed starts over, and nothing is handed
// out from a block that the operator may assign to another node.
type releaseStep int

const (
	notReleased releaseStep = iota
	withdrawn               // none of its addresses are used or cool, and none will be handed out
	cleared                 // in addition, the file and the data path do not have it
)

// heldBlock is a block of this node with its state. Its own methods and findConflict alone write the state.
type heldBlock struct {
	blockFacts
	changed func(*heldBlock) // called after each transition by which serves may change

	listed     bool        // the API server has it; false: only the file or pods do
	lost       bool        // the API server no longer has it; it is kept for pods that have addresses of it
	programmed bool        // the file and the data path have it
	returning  bool        // it is to be returned: nothing is handed out from it
	release    releaseStep // how far its return has come
	emptySince time.Time   // zero while any of its addresses is used or cools
	conflict   string      // an earlier block of this node with the same addresses
	down       string      // why the file or the data path does not have it
	unroutable bool        // the data path has other blocks, but not this one
}

// serves reports whether addresses of the block may be handed out.
func (h *heldBlock) serves() bool { return h.programmed && !h.ends() && h.conflict == "" }

// ends reports whether the block is being returned, deleted or was lost: nothing more is handed out from it.
func (h *heldBlock) ends() bool { return h.deleted() || h.returning || h.lost }

// deleted reports whether the block is at some step of its deletion.
func (h *heldBlock) deleted() bool { return h.draining || h.release != notReleased }

// found takes what the API server (listed) or the file says of the block, which is the same as before.
func (h *heldBlock) found(f blockFacts, listed bool) {
	h.blockFacts, h.listed, h.lost = f, listed, false
	h.changed(h)
}

// lose notes that the API server no longer has the block.
func (h *heldBlock) lose() {
	h.listed, h.lost, h.finalizers = false, true, nil
	h.changed(h)
}

// program notes that the file and the data path have the block.
func (h *heldBlock) program() {
	h.programmed, h.down, h.unroutable = true, "", false
	h.changed(h)
}

// failed notes why the file or the data path does not have the block. Alone says that the data path has others.
func (h *heldBlock) failed(why string, alone bool) {
	h.down, h.unroutable = why, h.unroutable || alone
	h.changed(h)
}

// setReturning notes whether the block is to be returned.
func (h *heldBlock) setReturning(returning bool) {
	if h.returning != returning {
		h.returning = returning
		h.changed(h)
	}
}

// setBusy notes whether any address of the block is used or cools. One that is deleted is withdrawn when none is.
func (h *heldBlock) setBusy(busy bool, now time.Time) {
	switch {
	case busy:
		h.emptySince = time.Time{}
		return
	case h.emptySince.IsZero():
		h.emptySince = now
	}
	if h.draining && h.listed && h.release == notReleased {
		h.release = withdrawn
		h.changed(h)
	}
}

// clear notes that neither the file nor the data path has the block, which is withdrawn.
func (h *heldBlock) clear() {
	h.release = cleared
	h.changed(h)
}

// blocks is the node's blocks, by name.
type blocks struct{ byName map[string]*heldBlock }

func (b *blocks) names() []string { return slices.Sorted(maps.Keys(b.byName)) }

// holding returns the block of an address of either family, and the address of the first family in its pair.
func (b *blocks) holding(a netip.Addr) (*heldBlock, netip.Addr) {
	for _, h := range b.byName {
		if first, ok := h.place(a); ok && h.conflict == "" {
			return h, first
		}
	}
	return nil, netip.Addr{}
}

// findConflict notes which other block has addresses of this one, if any has.
func (b *blocks) findConflict(h *heldBlock) {
	h.conflict = ""
	for _, name := range b.names() {
		if o := b.byName[name]; o != h && o.conflict == "" && o.overlaps(h.blockFacts) {
			h.conflict = name
			return
		}
	}
}

// uncommitted reports whether the file or the data path differs from desired.
func (b *blocks) uncommitted() bool {
	for _, h := range b.byName {
		if h.release == withdrawn || h.release == notReleased && h.conflict == "" && !h.programmed {
			return true
		}
	}
	return false
}

// desired returns the blocks that the file and the data path are to have.
func (b *blocks) desired() []blockFacts {
	return b.factsOf(func(h *heldBlock) bool { return h.release == notReleased && h.conflict == "" })
}

// withdrawn returns the blocks that the file and the data path are to lose.
func (b *blocks) withdrawn() []blockFacts {
	return b.factsOf(func(h *heldBlock) bool { return h.release == withdrawn })
}

// inUse returns the blocks that the API server has and that are not being returned.
func (b *blocks) inUse() []blockFacts {
	return b.factsOf(func(h *heldBlock) bool { return h.listed && h.release == notReleased })
}

// factsOf returns blocks, by name.
func (b *blocks) factsOf(is func(*heldBlock) bool) []blockFacts {
	out := []blockFacts{}
	for _, name := range b.names() {
		if h := b.byName[name]; is(h) {
			out = append(out, h.blockFacts)
		}
	}
	return out
}

// given returns the block of a request, if the node has it.
func (b *blocks) given(r *request) *heldBlock {
	if h, ok := b.byName[r.block]; ok && h.listed {
		return h
	}
	for _, h := range b.byName {
		if h.listed && h.request == r.uid {
			return h
		}
	}
	return nil
}

// answered reports whether nothing more will come of a request.
func (b *blocks) answered(r *request) bool { return r.spent || b.given(r) != nil }

// supplyOf sums up what this node has of a pool, and which blocks are idle. Blocks that are being returned count until
// they are deleted.
func (b *blocks) supplyOf(s *poolState) (supply, []idle) {
	have := supply{size: s.size, waiting: s.queue.Len()}
	have.warm = s.known && !s.deleting && (s.name == v1alpha1.DefaultPool || s.queue.Len() > 0)
	var empty []idle
	stuck := b.stuck(s)
	for _, h := range b.byName {
		if h.pool != s.name || h.conflict != "" {
			continue
		}
		c := s.alloc.Count(h.name)
		have.warm = have.warm || c.Used > 0 && s.known && !s.deleting
		if have.size == 0 {
			have.size = sizeOf(h.first)
		}
		if h.deleted() || h.lost || h == stuck {
			continue
		}
		have.free += min(c.Free, 1<<maxBits)
		if !h.emptySince.IsZero() && h.listed {
			empty = append(empty, idle{name: h.name, free: min(c.Free, 1<<maxBits), since: h.emptySince})
		}
	}
	return have, empty
}

// stuck returns the only block of a pool that cannot be routed while others can, and nil if there are several: then the
// cause is not the block, and further blocks would not help.
func (b *blocks) stuck(s *poolState) (only *heldBlock) {
	for _, h := range b.byName {
		if h.pool != s.name || !h.unroutable || h.programmed {
			continue
		}
		if only != nil {
			return nil
		}
		only = h
	}
	return only
}

// at is the address of block to that stands where addr stands in block from. The
// blocks of a pair have as many addresses each, so that they differ in the bits
// before the host part only.
func at(addr netip.Addr, from, to netip.Prefix) netip.Addr {
	host := addr.As16()
	out := to.Masked().Addr().As16()
	for i, bits := len(out)-1, from.Addr().BitLen()-from.Bits(); bits > 0; i, bits = i-1, bits-8 {
		mask := byte(0xff)
		if bits < 8 {
			mask = 1<<bits - 1
		}
		out[i] = out[i]&^mask | host[i]&mask
	}
	a := netip.AddrFrom16(out)
	if to.Addr().Is4() {
		a = a.Unmap()
	}
	return a
}

// sizeOf counts the addresses of a block, up to 2^30.
func sizeOf(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), maxBits) }

// maxBits caps counts: no node has as many pods.
const maxBits = 30
