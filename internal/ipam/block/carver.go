package block

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
