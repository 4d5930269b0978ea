package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// ec2 is the EC2 in memory of a run, and the limiters before it.
type ec2 struct {
	*cloudfake.Cloud
	paced     cloud.API // what Berth calls
	instances []string
	waits     atomic.Int64 // nanoseconds for which the limiters held calls back

	delay time.Duration

	mu       sync.Mutex           // guards what follows
	attached map[string]time.Time // ENIs that would outlive their instance, since when
	exposed  time.Duration        // the longest that one was

	// refuse is the action of which the next call is refused for its rate.
	refuse atomic.Pointer[string]
}

const (
	zone      = "lab-1a"
	primaries = "subnet-primaries" // of the nodes' primary ENIs
)

// newEC2 has an instance for every node. Where the subnets for new ENIs are to
// have so many free addresses, they are not those of the primary ENIs.
func newEC2(o Order, free []int) *ec2 {
	e := &ec2{Cloud: cloudfake.New(o.Limits.options()), delay: o.Limits.Delay, attached: map[string]time.Time{}}
	e.paced = pace.Cloud(e, pace.Options{Observer: e})
	e.AddSubnet(primaries, zone, "10.0.0.0/8", nil)
	for i, n := range free {
		id := fmt.Sprintf("subnet-%d", i)
		e.AddSubnet(id, zone, fmt.Sprintf("172.16.%d.0/20", 16*i), forPods)
		e.SetFree(id, n)
	}
	for i := range o.Nodes {
		id := fmt.Sprintf("i-%017x", i)
		e.instances = append(e.instances, id)
		e.AddInstance(id, instanceType, primaries)
	}
	return e
}

// forPods are the tags of the subnets with so many free addresses, by which the
// nodes choose them.
var forPods = map[string]string{"for": "pods"}

// outcome is what EC2 saw so far.
func (e *ec2) outcome() Outcome {
	out := Outcome{Calls: map[string]int{}, Waited: time.Duration(e.waits.Load())}
	for action, s := range e.Stats() {
		out.Calls[action] = s.Calls - s.Refused
		out.Throttled += s.Refused
	}
	creates := e.Stats()[pace.CreateENI.Action]
	out.FailedCreates = creates.Failed
	out.ENIs = creates.Calls - creates.Refused - creates.Failed
	return out
}

// greed is another client of the account: it makes so many calls a second, at
// random moments, and takes no notice of refusals.
func (e *ec2) greed(ctx context.Context, rate float64, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 2))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(dice.ExpFloat64() / rate * float64(time.Second))):
			e.Draw(foreignAction)
		}
	}
}

// Call implements pace.Observer.
func (e *ec2) Call(string, string, time.Duration) {}

// Limited implements pace.Observer.
func (e *ec2) Limited(_ string, d time.Duration) { e.waits.Add(int64(d)) }

// refused tells whether a call is the one that is to be refused, once it took
// the time of a call.
func (e *ec2) refused(ctx context.Context, action string) error {
	if a := e.refuse.Load(); a == nil || *a != action || !e.refuse.CompareAndSwap(a, nil) {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(e.delay):
	}
	return &cloud.Error{Class: cloud.Throttled, Op: action, Code: "RequestLimitExceeded", Message: "Request limit exceeded."}
}

// CreateENI implements cloud.API.
func (e *ec2) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	if err := e.refused(ctx, pace.CreateENI.Action); err != nil {
		return cloud.ENI{}, err
	}
	return e.Cloud.CreateENI(ctx, q)
}

// AssignAddresses implements cloud.API.
func (e *ec2) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	if err := e.refused(ctx, pace.Assign.Action); err != nil {
		return nil, err
	}
	return e.Cloud.AssignAddresses(ctx, id, n)
}

// AttachENI implements cloud.API.
func (e *ec2) AttachENI(ctx context.Context, id, instance string, index int) (string, error) {
	attachment, err := e.Cloud.AttachENI(ctx, id, instance, index)
	if err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.attached[id] = time.Now()
	}
	return attachment, err
}

// SetDeleteOnTermination implements cloud.API.
func (e *ec2) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	err := e.Cloud.SetDeleteOnTermination(ctx, id, attachment, on)
	e.mu.Lock()
	defer e.mu.Unlock()
	if since, ok := e.attached[id]; ok && on && err == nil {
		e.exposed = max(e.exposed, time.Since(since))
		delete(e.attached, id)
	}
	return err
}

// exposure is the longest time for which an ENI would have outlived its
// instance, and how many would now.
func (e *ec2) exposure() (longest time.Duration, now int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exposed, len(e.attached)
}
