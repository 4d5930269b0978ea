package pool

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// maxOutstanding is how many requests a node has for one pool at most.
const maxOutstanding = 8

// supply is what this node has of one pool, in addresses.
type supply struct {
	size    int  // of a block
	free    int  // assignable, or as soon as their block's route is there; cooling ones are not
	waiting int  // pods without one
	warm    bool // the pool is to have free addresses before anybody asks
}

// target is how many free addresses there are to be besides those for the pods
// that wait: percent of a block, rounded down.
func (s supply) target(percent int) int {
	if !s.warm {
		return 0
	}
	return int(int64(s.size) * int64(percent) / 100)
}

// blocks is how many more blocks it takes.
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

// toReturn picks the blocks that go back: empty for delay, the longest first,
// as long as the rest keeps what the pool is to have. soon is when the next one
// may; zero without.
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
