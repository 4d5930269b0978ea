package block

import "math/bits"

// Carver allocates the indexes of a pool and tracks which are taken. Its memory grows with the number of taken indexes,
// not with the pool, and the time of a call grows with neither. It is not safe for concurrent use.
type Carver struct {
	taken indexes
	next  int64
}

// NewCarver returns a Carver without taken indexes whose search starts at next, where the search of an earlier one ended
// (Next).
func NewCarver(next int64) *Carver {
	c := &Carver{taken: newIndexes()}
	c.Resume(next)
	return c
}

// Take takes the first free index from Next on, wrapping around below limit, which is Layout.Blocks and may differ
// between calls. So a freed index is not taken again while others are free. Ok is false, and nothing changes, if all
// indexes below limit are taken.
func (c *Carver) Take(limit int64) (index int64, ok bool) {
	limit = min(limit, MaxIndex+1)
	index = c.taken.free(c.next)
	if index >= limit {
		index = c.taken.free(0)
	}
	if index >= limit {
		return 0, false
	}
	c.Mark(index)
	c.next = index + 1
	return index, true
}

// Mark marks an index as taken, without changing Next. It ignores one that is already taken, or outside 0 to MaxIndex.
func (c *Carver) Mark(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.add(index)
	}
}

// Free frees an index. It ignores one that is not taken.
func (c *Carver) Free(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.remove(index)
	}
}

// Resume continues the search at next, where that of an earlier Carver ended.
func (c *Carver) Resume(next int64) { c.next = min(max(next, 0), MaxIndex+1) }

// Taken returns the number of taken indexes.
func (c *Carver) Taken() int64 { return c.taken.count }

// Next returns the start of the search for a free index, after the last one taken.
func (c *Carver) Next() int64 { return c.next }

// levels is the number of levels of the tree of indexes: 64^6 > 2^31.
const levels = 6

// indexes is a set of indexes from 0 to MaxIndex, as a tree whose nodes have 64 elements each: words of 64 indexes at the lowest
// level, other nodes above. Nodes without an index are not stored. Every call walks the tree once, so its time does not depend on
// how many indexes are in the set.
type indexes struct {
	root  *node
	count int64
}

// node is a part of the set. Bit i of some is set if element i contains an index, bit i of full if it contains all.
type node struct {
	some, full uint64
	words      []uint64 // of a node of the lowest level
	nodes      []*node  // of the others; nil: empty
}

func newIndexes() indexes { return indexes{root: newNode(levels - 1)} }

// newNode returns an empty node, whose elements are on the level below.
func newNode(level int) *node {
	if level == 1 {
		return &node{words: make([]uint64, 64)}
	}
	return &node{nodes: make([]*node, 64)}
}

const full = ^uint64(0)

// add adds an index to the set.
func (s *indexes) add(index int64) {
	var path [levels]*node
	n := s.root
	for level := levels - 1; ; level-- {
		path[level] = n
		at := element(level, index)
		n.some |= bit(at)
		if level == 1 {
			break
		}
		if n.nodes[at] == nil {
			n.nodes[at] = newNode(level - 1)
		}
		n = n.nodes[at]
	}
	word := &n.words[element(1, index)]
	if *word&bit(index) != 0 {
		return
	}
	s.count++
	*word |= bit(index)
	for level, below := 1, *word; level < levels && below == full; level++ {
		path[level].full |= bit(element(level, index))
		below = path[level].full
	}
}

// remove removes an index from the set.
func (s *indexes) remove(index int64) {
	var path [levels]*node
	n := s.root
	for level := levels - 1; ; level-- {
		path[level] = n
		if level == 1 {
			break
		}
		if n = n.nodes[element(level, index)]; n == nil {
			return
		}
	}
	word := &n.words[element(1, index)]
	if *word&bit(index) == 0 {
		return
	}
	s.count--
	*word &^= bit(index)
	below := *word
	for level := 1; level < levels; level++ {
		n, at := path[level], element(level, index)
		n.full &^= bit(at)
		if below == 0 {
			n.some &^= bit(at)
			if level > 1 {
				n.nodes[at] = nil
			}
		}
		below = n.some
	}
}

// free returns the lowest index that is not in the set and not below from.
func (s *indexes) free(from int64) int64 {
	if index, ok := s.root.free(levels-1, from); ok {
		return index
	}
	return MaxIndex + 1
}

// free is free within a node; ok is false if all of its indexes from that one on are in the set.
func (n *node) free(level int, from int64) (index int64, ok bool) {
	if n == nil {
		return from, true
	}
	for at := element(level, from); ; {
		switch {
		case n.full&bit(at) != 0:
		case level > 1:
			if index, ok = n.nodes[at].free(level-1, from); ok {
				return index, true
			}
		default:
			if word := n.words[at] | (bit(from) - 1); word != full {
				return from&^63 + firstZero(word), true
			}
		}
		later := n.full | bit(at) | (bit(at) - 1)
		if later == full {
			return 0, false
		}
		at = firstZero(later)
		from = (from>>(6*(level+1))<<6 + at) << (6 * level)
	}
}

// element returns which element of its node on a level contains an index.
func element(level int, index int64) int64 { return index >> (6 * level) & 63 }

func bit(index int64) uint64 { return 1 << (index & 63) }

func firstZero(word uint64) int64 { return int64(bits.TrailingZeros64(^word)) }
