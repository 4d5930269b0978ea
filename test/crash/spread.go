package crash

import (
	"math"
	"time"
)

// spread counts durations in classes, each 5 % longer than the one before, so
// that percentiles of any number of them take the same memory.
type spread struct {
	classes [400]int // the last also has what is longer
	n       int
	longest time.Duration
}

// least is where the first class ends.
const least, wider = 100 * time.Microsecond, 1.05

func (s *spread) add(d time.Duration) {
	class := 0
	if d > least {
		class = int(math.Ceil(math.Log(float64(d)/float64(least)) / math.Log(wider)))
	}
	s.classes[min(class, len(s.classes)-1)]++
	s.n++
	s.longest = max(s.longest, d)
}

// percentile is a duration that p percent of all do not exceed: the end of its
// class, so up to 5 % too long. It is 0 of none.
func (s *spread) percentile(p float64) time.Duration {
	rank := int(math.Ceil(p / 100 * float64(s.n)))
	for class, n := range s.classes {
		if rank -= n; rank <= 0 && s.n > 0 && class < len(s.classes)-1 {
			return min(s.longest, time.Duration(float64(least)*math.Pow(wider, float64(class))))
		}
	}
	return s.longest
}
