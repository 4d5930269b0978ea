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

// ec2 is the EC2 in memory of a run, and Berth's limiters in front of it.
type ec2 struct {
	*cloudfake.Cloud
	paced     cloud.API // the API that Berth calls
	instances []string
	waits     atomic.Int64 // nanoseconds that calls waited in the limiters
}

const (
	zone      = "lab-1a"
	primaries = "subnet-primaries" // of the nodes' primary ENIs
)

// newEC2 returns an EC2 with an instance per node. For each entry of free it has a subnet for new ENIs
// with that number of free addresses. If free is empty, new ENIs use the subnet of the primary ENIs.
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

// forPods are the tags with which nodes select the subnets for new ENIs.
var forPods = map[string]string{"for": "pods"}

// outcome returns the statistics of EC2 so far.
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

// startForeign starts another client of the account, if the limits have one. It makes calls at random
// times until ctx ends, and ignores refusals. startForeign returns after one minute of such calls.
func (e *ec2) startForeign(ctx context.Context, l Limits) {
	if l.Foreign == 0 {
		return
	}
	calls := func(action string, rate float64, seed uint64) {
		dice := rand.New(rand.NewPCG(l.Seed, seed))
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(dice.ExpFloat64() / rate * float64(time.Second))):
				e.Front.Draw(action)
			}
		}
	}
	if l.Published {
		for i, action := range pace.Actions() {
			go calls(action, l.Foreign*l.published(action).Rate, uint64(2+i))
		}
	} else {
		go calls(foreignAction, l.Foreign, 2)
	}
	<-time.After(time.Minute)
}

// Call implements pace.Observer.
func (e *ec2) Call(string, string, time.Duration) {}

// Limited implements pace.Observer.
func (e *ec2) Limited(_ string, d time.Duration) { e.waits.Add(int64(d)) }

// exposure returns the longest time between the attachment of an ENI and the setting of its
// DeleteOnTermination, and the number of ENIs for which it is not set yet.
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

// Limits are the limits of the EC2 in memory.
type Limits struct {
	Delay time.Duration // of every call
	// Shared is one bucket for the calls of all actions, describes included.
	Shared *cloudfake.Bucket
	// Published gives each action a bucket of its own, as EC2 documents them, times Part unless that is 0.
	Published bool
	Part      float64
	// Refused is the share of calls that are refused at random, regardless of their rate.
	Refused float64
	// Foreign is the number of calls per second of another client of the account,
	// which never backs off. It starts a minute before the first node joins. With Published, it is a multiple of the rate of
	// each bucket.
	Foreign float64
	// Seed determines the times of these calls, and which calls are refused at random.
	Seed uint64
}

// foreignAction is the action that the other client calls.
const foreignAction = "DescribeInstances"

// published are EC2's buckets (EC2 Developer Guide, "Request throttling for the
// Amazon EC2 API").
var published = map[string]cloudfake.Bucket{
	"Describe":             {Rate: 20, Size: 100},
	"":                     {Rate: 5, Size: 50},
	pace.Assign.Action:     {Rate: 5, Size: 100},
	pace.AssignIPv6.Action: {Rate: 5, Size: 100},
	pace.Tag.Action:        {Rate: 10, Size: 100},
}

// Options returns the options of an EC2 in memory with these limits.
func (l Limits) Options() cloudfake.Options {
	o := cloudfake.Options{Latency: l.Delay, Shared: l.Shared, Refused: l.Refused, Seed: l.Seed}
	if l.Published {
		o.Buckets = map[string]cloudfake.Bucket{}
		for action := range published {
			o.Buckets[action] = l.published(action)
		}
	}
	return o
}

// published returns the bucket of an action.
func (l Limits) published(action string) cloudfake.Bucket {
	b, ok := published[action]
	if !ok && strings.HasPrefix(action, "Describe") {
		b, ok = published["Describe"]
	}
	if !ok {
		b = published[""]
	}
	if l.Part > 0 {
		b = cloudfake.Bucket{Rate: l.Part * b.Rate, Size: l.Part * b.Size}
	}
	return b
}

// MinDuration returns the minimum duration of calls that the limits impose: until the last call has its
// token and its reply. Beside another client, Berth gets a proportional share of the rate.
func (l Limits) MinDuration(calls map[string]int) (longest time.Duration) {
	if l.Foreign > 0 && !l.Published {
		return l.share(calls)
	}
	total := 0
	for action, n := range calls {
		total += n
		if l.Published {
			b := l.published(action)
			if l.Foreign > 0 {
				b = cloudfake.Bucket{Rate: b.Rate / (1 + l.Foreign)}
			}
			longest = max(longest, drainTime(b, n))
		}
	}
	if l.Shared != nil {
		longest = max(longest, drainTime(*l.Shared, total))
	}
	return longest + l.Delay
}

// share returns the minimum duration of calls when the shared bucket serves Berth and the other client in
// proportion to the calls that each makes, and Berth calls at the full rate of the bucket.
func (l Limits) share(calls map[string]int) time.Duration {
	total := 0
	for _, n := range calls {
		total += n
	}
	rate := l.Shared.Rate * l.Shared.Rate / (l.Shared.Rate + l.Foreign)
	return time.Duration(float64(total)/rate*float64(time.Second)) + l.Delay
}

// drainTime returns the time in which a bucket that starts full grants n tokens.
func drainTime(b cloudfake.Bucket, n int) time.Duration {
	return time.Duration(max(0, float64(n)-b.Size) / b.Rate * float64(time.Second))
}
