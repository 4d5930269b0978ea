package block

import (
	"fmt"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/test/harness/check"
)

// take asserts which indexes are taken next; -1 stands for none.
func take(t *testing.T, c *Carver, limit int64, want ...int64) {
	t.Helper()
	for _, w := range want {
		index, ok := c.Take(limit)
		if !ok {
			index = -1
		}
		if index != w {
			t.Fatalf("Take() = %d, want %d", index, w)
		}
	}
}

func TestCarver(t *testing.T) {
	t.Run("in order, then exhausted", func(t *testing.T) {
		c := NewCarver(0)
		take(t, c, 6, 0, 1, 2, 3, 4, 5, -1, -1)
		if c.Taken() != 6 || c.Next() != 6 {
			t.Errorf("taken = %d, next = %d, want 6 and 6", c.Taken(), c.Next())
		}
	})
	t.Run("freed index comes last", func(t *testing.T) {
		c := NewCarver(0)
		take(t, c, 4, 0, 1)
		c.Free(0)
		take(t, c, 4, 2, 3, 0, -1)
		c.Free(2)
		take(t, c, 4, 2)
	})
	t.Run("pool of one block", func(t *testing.T) {
		c := NewCarver(0)
		take(t, c, 1, 0, -1)
		c.Free(0)
		take(t, c, 1, 0, -1)
	})
	t.Run("after a restart", func(t *testing.T) {
		c := NewCarver(3)
		c.Mark(4)
		c.Mark(0)
		take(t, c, 6, 3, 5, 1, 2, -1)
	})
	t.Run("growing pool", func(t *testing.T) {
		c := NewCarver(0)
		take(t, c, 2, 0, 1, -1)
		c.Free(0)
		take(t, c, 4, 2, 3, 0, -1)
	})
	t.Run("marks beyond the pool", func(t *testing.T) {
		c := NewCarver(9)
		c.Mark(9)
		take(t, c, 2, 0, 1, -1)
	})
	t.Run("none", func(t *testing.T) {
		take(t, NewCarver(0), 0, -1)
	})
	t.Run("repeated marks and frees", func(t *testing.T) {
		c := NewCarver(0)
		c.Mark(1)
		c.Mark(1)
		c.Free(0)
		check.Equal(t, c.Taken(), 1, "taken")
		c.Free(1)
		c.Free(1)
		check.Equal(t, c.Taken(), 0, "taken")
	})
	t.Run("not beyond the highest index", func(t *testing.T) {
		c := NewCarver(MaxIndex - 1)
		take(t, c, 1<<40, MaxIndex-1, MaxIndex, 0)
		c = NewCarver(1 << 40)
		c.Mark(MaxIndex + 1)
		c.Mark(-1)
		c.Free(-1)
		take(t, c, 1<<40, 0)
		check.Equal(t, c.Taken(), 1, "taken")
		take(t, NewCarver(-7), 1, 0)
	})
}

// naive is a simple implementation of Carver.
type naive struct {
	taken map[int64]bool
	next  int64
}

func (n *naive) take(limit int64) (int64, bool) {
	for i := range limit {
		if index := (min(n.next, limit) + i) % limit; !n.taken[index] {
			n.taken[index] = true
			n.next = index + 1
			return index, true
		}
	}
	return 0, false
}

func TestCarverMatchesNaiveImplementation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Around 64^2, so that words of three levels become full and empty.
		limit := rapid.SampledFrom([]int64{1, 5, 64, 130, 4095, 4096, 4097, 4200}).Draw(t, "limit")
		next := rapid.Int64Range(0, limit).Draw(t, "next")
		c, n := NewCarver(next), &naive{map[int64]bool{}, next}
		index := rapid.Int64Range(0, limit+70)
		mark := func(from, count int64) {
			for i := from; i < from+count; i++ {
				c.Mark(i)
				n.taken[i] = true
			}
		}
		mark(0, rapid.Int64Range(0, limit).Draw(t, "taken at first"))
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				got, ok := c.Take(limit)
				want, wantOK := n.take(limit)
				if got != want || ok != wantOK {
					t.Fatalf("Take() = %d, %v, want %d, %v", got, ok, want, wantOK)
				}
			},
			"mark": func(t *rapid.T) { mark(index.Draw(t, "from"), rapid.Int64Range(1, 130).Draw(t, "count")) },
			"free": func(t *rapid.T) {
				from := index.Draw(t, "from")
				for i := from; i < from+rapid.Int64Range(1, 130).Draw(t, "count"); i++ {
					c.Free(i)
					delete(n.taken, i)
				}
			},
			"grow": func(t *rapid.T) { limit += rapid.Int64Range(0, 70).Draw(t, "more") },
			"": func(t *rapid.T) {
				if c.Taken() != int64(len(n.taken)) || c.Next() != n.next {
					t.Fatalf("taken = %d, next = %d, want %d and %d", c.Taken(), c.Next(), len(n.taken), n.next)
				}
				if empty, _ := nodes(c.taken.root); empty > 0 && len(n.taken) > 0 {
					t.Fatalf("%d empty nodes are stored", empty)
				}
			},
		})
	})
}

// A Take takes nanoseconds from a hundred taken blocks to a million, also in a full pool whose only free block is the last
// one searched.
func BenchmarkTake(b *testing.B) {
	for _, taken := range []int64{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("first-free-of-%d", taken), func(b *testing.B) {
			c := filled(taken)
			for b.Loop() {
				c.next = taken/2 + 1
				c.Free(taken / 2)
				c.Take(taken)
			}
		})
		b.Run(fmt.Sprintf("next-after-%d", taken), func(b *testing.B) {
			c := filled(taken)
			for b.Loop() {
				index, _ := c.Take(MaxIndex + 1)
				c.Free(index)
				c.next = index
			}
			b.ReportMetric(bytesPerBlock(taken), "B/block")
		})
	}
}

func filled(taken int64) *Carver {
	c := NewCarver(0)
	for range taken {
		c.Take(MaxIndex + 1)
	}
	return c
}

// bytesPerBlock returns the memory of a Carver per taken index.
func bytesPerBlock(taken int64) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := filled(taken)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(c)
	return (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(taken)
}

// The memory of a pool of 2^31 blocks depends on the number of taken blocks, wherever they are.
func TestSparsePool(t *testing.T) {
	c := NewCarver(0)
	const apart = (MaxIndex + 1) / 1000
	for i := range int64(1000) {
		c.Mark(i * apart)
	}
	_, all := nodes(c.taken.root)
	check.AtMost(t, all, 3*1000, "nodes for 1000 blocks")
	take(t, c, MaxIndex+1, 1, 2)
}

// nodes counts the nodes of a tree, and those without an index.
func nodes(n *node) (empty, all int) {
	if n == nil {
		return 0, 0
	}
	if n.some == 0 {
		empty++
	}
	for _, below := range n.nodes {
		e, a := nodes(below)
		empty, all = empty+e, all+a
	}
	return empty, all + 1
}
