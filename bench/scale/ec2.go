package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// ec2 is the EC2 in memory of a run, and the limiters before it.
type ec2 struct {
	*cloudfake.Cloud
	paced     cloud.API // what Berth calls
	instances []string
	waits     atomic.Int64 // nanoseconds for which the limiters held calls back
}

const (
	zone      = "lab-1a"
	primaries = "subnet-primaries" // of the nodes' primary ENIs
)

// newEC2 has an instance for every node. Where the subnets for new ENIs are to
// have so many free addresses, they are not those of the primary ENIs.
func newEC2(o Order, free []int) *ec2 {
	e := &ec2{Cloud: cloudfake.New(o.Limits.Options())}
	e.paced = pace.Cloud(e, pace.Options{Observer: e})
	e.State.AddSubnet(primaries, zone, "10.0.0.0/8", nil)
	for i, n := range free {
		id := fmt.Sprintf("subnet-%d", i)
		e.State.AddSubnet(id, zone, fmt.Sprintf("172.16.%d.0/20", 16*i), forPods)
		e.State.SetFree(id, n)
	}
	for i := range o.Nodes {
		id := fmt.Sprintf("i-%017x", i)
		e.instances = append(e.instances, id)
		e.State.AddInstance(id, instanceType, primaries)
	}
	return e
}

// forPods are the tags of the subnets with so many free addresses, by which the
// nodes choose them.
var forPods = map[string]string{"for": "pods"}

// outcome is what EC2 saw so far.
func (e *ec2) outcome() Outcome {
	out := Outcome{Calls: map[string]int{}, Waited: time.Duration(e.waits.Load())}
	for action, s := range e.Front.Stats() {
		out.Calls[action] = s.Calls - s.Refused
		out.Throttled += s.Refused
	}
	creates := e.Front.Stats()[pace.CreateENI.Action]
	out.FailedCreates = creates.Failed
	out.ENIs = creates.Calls - creates.Refused - creates.Failed
	return out
}

// startForeign has another client of the account make so many calls a second until ctx
// ends, if any: at random moments, whatever is refused. It returns when the client
// has done so for a minute.
func (e *ec2) startForeign(ctx context.Context, l Limits) {
	if l.Foreign == 0 {
		return
	}
	go func() {
		dice := rand.New(rand.NewPCG(l.Seed, 2))
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(dice.ExpFloat64() / l.Foreign * float64(time.Second))):
				e.Front.Draw(foreignAction)
			}
		}
	}()
	<-time.After(time.Minute)
}

// Call implements pace.Observer.
func (e *ec2) Call(string, string, time.Duration) {}

// Limited implements pace.Observer.
func (e *ec2) Limited(_ string, d time.Duration) { e.waits.Add(int64(d)) }

// exposure is the longest time for which an ENI would have outlived its
// instance, and how many would now.
func (e *ec2) exposure() (longest time.Duration, now int) {
	attached := map[string]time.Time{}
	for _, call := range e.Front.Calls() {
		switch since, ok := attached[call.ENI]; {
		case call.Err != nil:
		case call.Op == "AttachENI":
			attached[call.ENI] = call.At
		case call.Op == "SetDeleteOnTermination" && ok:
			longest = max(longest, call.At.Sub(since))
			delete(attached, call.ENI)
		}
	}
	return longest, len(attached)
}

// Limits is what the EC2 in memory imposes.
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
