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

// levels is the number of levels of 64-bit words above an index of 31 bits: 64^6 > 2^31.
const levels = 6

// indexes is a set of indexes from 0 to MaxIndex. Bit i of word w of the lowest level is index 64w+i. In all other levels,
// bit i of word w is set if word 64w+i below it is full. Words without a bit are not stored. A step up or down skips all
// indexes of a word, so the first free index is at most 2*levels steps away.
type indexes struct {
	level [levels]map[int64]uint64
	count int64
}

func newIndexes() (s indexes) {
	for i := range s.level {
		s.level[i] = make(map[int64]uint64)
	}
	return s
}

const full = ^uint64(0)

// add adds an index to the set.
func (s *indexes) add(index int64) {
	if s.level[0][index>>6]&bit(index) == 0 {
		s.count++
	}
	for i := range s.level {
		word := s.level[i][index>>6] | bit(index)
		s.level[i][index>>6] = word
		if word != full {
			return
		}
		index >>= 6
	}
}

// remove removes an index from the set.
func (s *indexes) remove(index int64) {
	if s.level[0][index>>6]&bit(index) == 0 {
		return
	}
	s.count--
	for i := range s.level {
		was := s.level[i][index>>6]
		if word := was &^ bit(index); word != 0 {
			s.level[i][index>>6] = word
		} else {
			delete(s.level[i], index>>6)
		}
		if was != full {
			return
		}
		index >>= 6
	}
}

// free returns the lowest index that is not in the set and not below from.
func (s *indexes) free(from int64) int64 {
	i := 0
	for ; i < levels; i++ { // up, to a word with a free bit at or after from
		if word := s.level[i][from>>6] | (bit(from) - 1); word != full {
			from = from&^63 + firstZero(word)
			break
		}
		from = from>>6 + 1
	}
	for ; i > 0 && i < levels; i-- { // down, to the lowest free index in that word
		from = from<<6 + firstZero(s.level[i-1][from])
	}
	return from
}

func bit(index int64) uint64 { return 1 << (index & 63) }

func firstZero(word uint64) int64 { return int64(bits.TrailingZeros64(^word)) }
