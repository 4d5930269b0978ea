package scale

import (
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Limits is what the EC2 in memory imposes, and does not tell.
type Limits struct {
	Delay time.Duration // of every call
	// Shared is one bucket for the calls of all actions, describes included.
	Shared *cloudfake.Bucket
	// Published gives each action a bucket of its own, as EC2 documents them.
	Published bool
	// Refused is the share of calls that are refused at random, whatever their rate.
	Refused float64
	// Foreign is how many calls a second another client of the account makes,
	// which never backs off. It does so for a minute before the first node joins.
	Foreign float64
	// Seed chooses the moments of its calls, and which calls are refused at random.
	Seed uint64
}

// foreignAction is what the other client calls.
const foreignAction = "DescribeInstances"

// published are EC2's buckets (EC2 Developer Guide, "Request throttling for the
// Amazon EC2 API").
var published = map[string]cloudfake.Bucket{
	"Describe":             {Rate: 20, Size: 100},
	"":                     {Rate: 5, Size: 50},
	pace.Assign.Action:     {Rate: 5, Size: 100},
	pace.AssignIPv6.Action: {Rate: 5, Size: 100},
}

// Options are those of an EC2 in memory with these limits.
func (l Limits) Options() cloudfake.Options {
	o := cloudfake.Options{Latency: l.Delay, Shared: l.Shared, Refused: l.Refused, Seed: l.Seed}
	if l.Published {
		o.Buckets = published
	}
	return o
}

// Forces is how long calls take at least by the limits alone: until the last
// one's token is there, and its reply; beside another client, by a share of them.
func (l Limits) Forces(calls map[string]int) (longest time.Duration) {
	if l.Foreign > 0 {
		return l.share(calls)
	}
	total := 0
	for action, n := range calls {
		total += n
		if l.Published {
			longest = max(longest, lasts(publishedFor(action), n))
		}
	}
	if l.Shared != nil {
		longest = max(longest, lasts(*l.Shared, total))
	}
	return longest + l.Delay
}

// share is how long calls take at least when the shared bucket serves Berth and
// the other client in proportion to the calls that each makes, and Berth makes
// as many as the whole bucket grants.
func (l Limits) share(calls map[string]int) time.Duration {
	total := 0
	for _, n := range calls {
		total += n
	}
	rate := l.Shared.Rate * l.Shared.Rate / (l.Shared.Rate + l.Foreign)
	return time.Duration(float64(total)/rate*float64(time.Second)) + l.Delay
}

func publishedFor(action string) cloudfake.Bucket {
	if b, ok := published[action]; ok {
		return b
	}
	if strings.HasPrefix(action, "Describe") {
		return published["Describe"]
	}
	return published[""]
}

// lasts is how long it takes a full bucket to give n tokens.
func lasts(b cloudfake.Bucket, n int) time.Duration {
	return time.Duration(max(0, float64(n)-b.Size) / b.Rate * float64(time.Second))
}
