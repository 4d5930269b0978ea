package pool

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// maxOutstanding bounds the requests of a node for one pool.
const maxOutstanding = 8

// supply is the node's supply of one pool, in addresses.
type supply struct {
	size    int  // size of a block
	free    int  // assignable now or once their block is routed, without cooling ones
	waiting int  // pods without an address
	warm    bool // whether to keep free addresses of the pool
}

// target returns how many free addresses to keep in addition to those for waiting pods: percent of a block, rounded down.
func (s supply) target(percent int) int {
	if !s.warm {
		return 0
	}
	return int(int64(s.size) * int64(percent) / 100)
}

// blocks returns the number of further blocks needed.
func (s supply) blocks(percent int) int {
	missing := s.waiting + s.target(percent) - s.free
	if missing <= 0 {
		return 0
	}
	return min((missing+s.size-1)/s.size, maxOutstanding)
}

// idle is a block without used or cooling addresses.
type idle struct {
	name  string
	free  int
	since time.Time
}

// toReturn selects the blocks to release: those that have been empty for delay, the longest first, while the rest suffices.
// soon is the time at which the next one may be released; zero: none.
func toReturn(s supply, percent int, empty []idle, delay time.Duration, now time.Time) (names []string, soon time.Time) {
	slices.SortFunc(empty, func(x, y idle) int {
		return cmp.Or(x.since.Compare(y.since), strings.Compare(x.name, y.name))
	})
	spare := s.free - s.waiting - s.target(percent)
	for _, b := range empty {
		if spare < b.free {
			break
		}
		if due := b.since.Add(delay); due.After(now) {
			return names, due
		}
		names = append(names, b.name)
		spare -= b.free
	}
	return names, time.Time{}
}
