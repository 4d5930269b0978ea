package eni

import "time"

// Daemons that share an account's rate limits do not know how many they are. The listings for repair of thousands of
// nodes exceed the limits, and then compete with calls that pods wait for. Each daemon therefore lengthens the
// intervals of its own until EC2 no longer delays them.
const (
	stretchSlow  = 2 * time.Second // duration of calls that were delayed: EC2 replies within a second
	stretchMore  = 2.0             // factor after delayed calls,
	stretchLess  = 0.98            // and after others: one search or listing in 35 is delayed, if others delay it at all
	stretchLimit = 12.0            // listings at least once an hour with the default interval
)

// stretch is the factor by which intervals of calls for repair are lengthened. The zero value is 1.
type stretch struct{ more float64 }

// of returns an interval with the factor.
func (s *stretch) of(d time.Duration) time.Duration { return time.Duration(float64(d) * (1 + s.more)) }

// after returns an interval with the factor and a jitter, at most stretchLimit times as long.
func (s *stretch) after(d time.Duration, jitter func(time.Duration) time.Duration) time.Duration {
	return min(jitter(s.of(d)), time.Duration(stretchLimit*float64(d)))
}

// took adapts the factor to how long the calls took that an interval ended with.
func (s *stretch) took(d time.Duration) {
	by := stretchLess
	if d > stretchSlow {
		by = stretchMore
	}
	s.more = max(0, min(stretchLimit, (1+s.more)*by)-1)
}
