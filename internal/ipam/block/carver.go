package block

import "math/bits"

// Carver hands out the indexes of a pool and knows which are taken. Its memory grows with the taken
// indexes, not with the pool, and no call's time grows with either. It is not safe for concurrent use.
type Carver struct {
	taken indexes
	next  int64
}

// NewCarver returns a Carver with no index taken that begins its search at next, where the search of an
// earlier one ended (Next).
func NewCarver(next int64) *Carver {
	c := &Carver{taken: newIndexes()}
	c.Resume(next)
	return c
}

// Take takes the first free index from Next on, wrapping around below limit, which is Layout.Blocks and
// may differ from call to call. An index that was freed is thus not taken again while others are free.
// Ok is false, and nothing changes, if all below limit are taken.
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

// Mark takes an index that is known to be taken, and leaves Next as it is. One that is taken, or
// outside 0 to MaxIndex, is ignored.
func (c *Carver) Mark(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.add(index)
	}
}

// Free frees an index. One that is not taken is ignored.
func (c *Carver) Free(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.remove(index)
	}
}

// Resume has the search continue at next, where that of an earlier Carver ended.
func (c *Carver) Resume(next int64) { c.next = min(max(next, 0), MaxIndex+1) }

// Taken returns how many indexes are taken.
func (c *Carver) Taken() int64 { return c.taken.count }

// Next returns where the search for a free index begins: after the one taken last.
func (c *Carver) Next() int64 { return c.next }

// levels is the number of levels of 64-bit words above an index of 31 bits: 64^6 > 2^31.
const levels = 6

// indexes is a set of them, 0 to MaxIndex. Bit i of word w of the lowest level is index 64w+i; bit i of
// word w of any other level says that word 64w+i below it is full. Words without a bit are not kept. A
// step up or down passes over all that a word stands for, so the first index that is free is at most
// 2*levels steps away.
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

// add puts an index into the set.
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

// remove takes an index out of the set.
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

// free returns the lowest index, not below from, that is not in the set.
func (s *indexes) free(from int64) int64 {
	i := 0
	for ; i < levels; i++ { // up, to a word with a free bit at from or behind it
		if word := s.level[i][from>>6] | (bit(from) - 1); word != full {
			from = from&^63 + firstZero(word)
			break
		}
		from = from>>6 + 1
	}
	for ; i > 0 && i < levels; i-- { // down, to the lowest one that it stands for
		from = from<<6 + firstZero(s.level[i-1][from])
	}
	return from
}

func bit(index int64) uint64 { return 1 << (index & 63) }

func firstZero(word uint64) int64 { return int64(bits.TrailingZeros64(^word)) }
