package block

// Carver knows which indexes of a pool are taken, and hands out the next. Its
// memory grows with the taken indexes, not with the pool, and no call's time
// grows with either. Not safe for concurrent use: its owner locks.
type Carver struct {
	taken indexes
	next  int64
}

// NewCarver returns a Carver with no index taken that begins its search at next,
// where an earlier one's stopped (Next).
func NewCarver(next int64) *Carver {
	c := &Carver{taken: newIndexes()}
	c.Resume(next)
	return c
}

// Take takes the first free index from Next on, wrapping round below limit,
// which is Layout.Blocks and may differ from call to call. So an index that was
// freed is not given again while others are free. Not ok: all below limit are
// taken, and nothing has changed.
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

// Mark takes an index that is known to be taken. Next stays. One that is taken,
// or outside 0 to MaxIndex, is left alone.
func (c *Carver) Mark(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.add(index)
	}
}

// Free gives an index back. One that is not taken is left alone.
func (c *Carver) Free(index int64) {
	if index >= 0 && index <= MaxIndex {
		c.taken.remove(index)
	}
}

// Resume has the search go on at next, where an earlier Carver's stopped.
func (c *Carver) Resume(next int64) { c.next = min(max(next, 0), MaxIndex+1) }

// Taken returns how many indexes are taken.
func (c *Carver) Taken() int64 { return c.taken.count }

// Next returns where the search for a free index begins: behind the one taken last.
func (c *Carver) Next() int64 { return c.next }
