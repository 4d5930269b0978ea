package ec2api_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// wantNoReply checks that a call ended without an HTTP response.
func wantNoReply(t *testing.T, err error) {
	t.Helper()
	var api smithy.APIError
	if err == nil || errors.As(err, &api) {
		t.Fatalf("call ended with %v, want a closed connection", err)
	}
}

func TestThrottling(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.RateLimits = map[string]spec.RateLimit{"CreateNetworkInterface": {Bucket: 3, Refill: 2}}
	r := newRig(t, s, vpc.WithClock(fake))
	try := func() error {
		_, err := r.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("a"))})
		return err
	}
	burst := func(want int) {
		t.Helper()
		for i := range want {
			if err := try(); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		wantCode(t, try(), "RequestLimitExceeded", http.StatusServiceUnavailable)
	}
	burst(3)
	if err := describeSubnets(t, r.Client); err != nil {
		t.Fatalf("another action shares the bucket: %v", err)
	}
	fake.Advance(time.Second)
	burst(2)
	got := r.cloud.API.Stats()["CreateNetworkInterface"]
	if got.Count != 7 || got.Errors["RequestLimitExceeded"] != 2 {
		t.Fatalf("CreateNetworkInterface stats = %+v, want 7 calls with 2 throttled", got)
	}
}

// The documented buckets hold 50 calls for describe calls without filters and pages, and 100 for others.
func TestDocumentedBuckets(t *testing.T) {
	r := newRig(t, instant(), vpc.WithClock(clock.NewFake(time.Now())))
	n := 0
	for ; describeSubnets(t, r.Client) == nil; n++ {
	}
	if n != 50 {
		t.Errorf("%d unbounded describe calls in a burst, want 50", n)
	}
	for n = 0; ; n++ {
		if _, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{MaxResults: aws.Int32(5)}); err != nil {
			break
		}
	}
	if n != 100 {
		t.Errorf("%d bounded describe calls in a burst, want 100", n)
	}
	r.cloud.API.SetThrottle(false)
	if err := describeSubnets(t, r.Client); err != nil {
		t.Error(err)
	}
}

// When a reply is lost after the call took effect, the SDK repeats the call with the same client token
// and gets the ENI that the first call created.
func TestLostReply(t *testing.T) {
	r := newRig(t, instant())
	inject(t, r, spec.Fault{Action: "CreateNetworkInterface", Kind: "lostReply", Count: 1})
	retrying := client(r.cloud, static(r.cloud), 3)
	out, err := retrying.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("a"))})
	ok(t, err)
	snapshot := r.cloud.Snapshot()
	if _, ok := snapshot.ENI(*out.NetworkInterface.NetworkInterfaceId); !ok || len(snapshot.ENIs) != 3 {
		t.Fatalf("%d ENIs, want 3: two of the nodes and one new", len(snapshot.ENIs))
	}
	if got := r.cloud.API.Stats()["CreateNetworkInterface"]; got.Count != 2 || got.LostReplies != 1 {
		t.Fatalf("CreateNetworkInterface stats = %+v, want 2 calls with one lost reply", got)
	}
}

func TestLostReplyHasEffectLostRequestHasNone(t *testing.T) {
	r := newRig(t, instant())
	id := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	in := &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &id, SecondaryPrivateIpAddressCount: aws.Int32(1)}
	inject(t, r, spec.Fault{Action: "Assign*", Kind: "lostRequest", Count: 1})
	_, err := r.AssignPrivateIpAddresses(t.Context(), in)
	wantNoReply(t, err)
	if e := r.describe(id); len(e.PrivateIpAddresses) != 1 {
		t.Fatalf("ENI has addresses %+v after a lost request, want one", e.PrivateIpAddresses)
	}
	inject(t, r, spec.Fault{Action: "Assign*", Kind: "lostReply", Count: 1})
	_, err = r.AssignPrivateIpAddresses(t.Context(), in)
	wantNoReply(t, err)
	if e := r.describe(id); len(e.PrivateIpAddresses) != 2 {
		t.Fatalf("ENI has addresses %+v after a lost reply, want two", e.PrivateIpAddresses)
	}
	if got := r.cloud.API.Stats()["AssignPrivateIpAddresses"]; got.LostReplies != 1 || got.LostRequests != 1 || got.Count != 2 {
		t.Fatalf("AssignPrivateIpAddresses stats = %+v, want a lost request and a lost reply", got)
	}
}

func inject(t *testing.T, r rig, f spec.Fault) {
	t.Helper()
	if _, err := r.cloud.API.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func TestFaults(t *testing.T) {
	r := newRig(t, instant())
	inject(t, r, spec.Fault{Action: "DescribeSubnets", Kind: "error", Code: "InternalError", Skip: 1, Count: 2})
	inject(t, r, spec.Fault{Action: "DescribeVpcs", Kind: "throttle"})
	for i, want := range []string{"", "InternalError", "InternalError", ""} {
		err := describeSubnets(t, r.Client)
		if want == "" && err != nil {
			t.Fatalf("call %d: %v", i, err)
		} else if want != "" {
			wantCode(t, err, want, http.StatusInternalServerError)
		}
	}
	for range 3 {
		_, err := r.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
		wantCode(t, err, "RequestLimitExceeded", http.StatusServiceUnavailable)
	}
	if met := r.cloud.API.FaultsMet(); met["error"] != 2 || met["throttle"] != 3 || len(met) != 2 {
		t.Errorf("FaultsMet() = %v, want 2 errors and 3 throttled calls", met)
	}
	r.cloud.API.ClearFaults()
	r.does(t, &awsec2.DescribeVpcsInput{})
	if _, err := r.cloud.API.Inject(spec.Fault{Action: "*", Kind: "gremlin"}); err == nil {
		t.Fatal("unknown fault kind is accepted")
	}
}

func TestLatency(t *testing.T) {
	fake := clock.NewFake(time.Now())
	r := newRig(t, instant(), vpc.WithClock(fake))
	r.cloud.API.SetLatency("DescribeSubnets", time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- describeSubnets(t, r.Client) }()
	arrive(t, fake, ended)
	fake.Advance(time.Minute)
	ok(t, <-ended)
}

// arrive waits until a call waits for the clock, which means that the API has received it.
func arrive(t *testing.T, fake *clock.Fake, ended <-chan error) {
	t.Helper()
	for fake.Waiting() == 0 {
		select {
		case err := <-ended:
			t.Fatalf("call ended before its latency passed: %v", err)
		default:
			runtime.Gosched()
		}
	}
}

func TestOutage(t *testing.T) {
	r := newRig(t, instant())
	r.cloud.API.Outage(true)
	wantNoReply(t, describeSubnets(t, r.Client))
	r.cloud.API.Outage(false)
	ok(t, describeSubnets(t, r.Client))
	if got := r.cloud.API.Stats()["DescribeSubnets"]; got.Count != 1 {
		t.Fatalf("DescribeSubnets stats = %+v, want one call: calls during an outage do not arrive", got)
	}
}

func TestEventualConsistency(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.Consistency.Describe = spec.Duration(2 * time.Second)
	r := newRig(t, s, vpc.WithClock(fake))
	id := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	byID := &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}}
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", byID)
	r.attach(id, "node-a", 1) // writes are not subject to the delay
	fake.Advance(2 * time.Second)
	if e := r.describe(id); e.Status != "in-use" {
		t.Fatalf("status = %s, want in-use", e.Status)
	}
	r.does(t, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &id, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	if e := r.describe(id); len(e.PrivateIpAddresses) != 1 {
		t.Fatalf("ENI is described with addresses %+v immediately after the assignment, want one", e.PrivateIpAddresses)
	}
	fake.Advance(1999 * time.Millisecond)
	if e := r.describe(id); len(e.PrivateIpAddresses) != 1 {
		t.Fatal("assignment is visible before the consistency delay")
	}
	fake.Advance(time.Millisecond)
	if e := r.describe(id); len(e.PrivateIpAddresses) != 2 {
		t.Fatal("assignment is not visible after the consistency delay")
	}
}

func TestConsistencyOfWrites(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.Consistency = spec.Consistency{Describe: spec.Duration(time.Second), Writes: true}
	r := newRig(t, s, vpc.WithClock(fake))
	id := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id})
	fake.Advance(time.Second)
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id})
}

func TestAttachmentTransitions(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.Delays = spec.Delays{Attach: spec.Duration(2 * time.Second), Link: spec.Duration(3 * time.Second), Detach: spec.Duration(time.Second)}
	r := newRig(t, s, vpc.WithClock(fake))
	id := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	attachment := r.attach(id, "node-a", 1)
	if e := r.describe(id); e.Attachment.Status != "attaching" || e.Status != "in-use" {
		t.Fatalf("status %s with attachment %s, want in-use with attaching", e.Status, e.Attachment.Status)
	}
	r.refuses(t, "IncorrectState", &awsec2.DetachNetworkInterfaceInput{AttachmentId: &attachment})
	fake.Advance(2 * time.Second)
	if e := r.describe(id); e.Attachment.Status != "attached" {
		t.Fatalf("attachment status = %s, want attached", e.Attachment.Status)
	}
	r.does(t, &awsec2.DetachNetworkInterfaceInput{AttachmentId: &attachment, Force: aws.Bool(true)})
	r.refuses(t, "InvalidParameterValue", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id})
	fake.Advance(time.Second)
	if e := r.describe(id); e.Status != "available" {
		t.Fatalf("status after detachment = %s, want available", e.Status)
	}
}

// An ENI can be attached to a running or stopped instance, but not to one in transition.
func TestAttachRequiresSettledInstance(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.Delays = spec.Delays{Launch: spec.Duration(time.Minute), Stop: spec.Duration(time.Minute)}
	r := newRig(t, s, vpc.WithClock(fake))
	id := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	out, err := r.RunInstances(t.Context(), &awsec2.RunInstancesInput{
		ImageId: aws.String("ami-0123456789abcdef0"), SubnetId: aws.String(r.subnet("a")), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
	})
	if err != nil || out.Instances[0].State.Name != "pending" {
		t.Fatalf("RunInstances() = %+v, %v; want a pending instance", out, err)
	}
	instance := []string{*out.Instances[0].InstanceId}
	try := func() error {
		_, err := r.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: id, InstanceId: &instance[0], DeviceIndex: aws.Int32(1)})
		return err
	}
	wantCode(t, try(), "IncorrectInstanceState", http.StatusBadRequest)
	r.refuses(t, "IncorrectInstanceState", &awsec2.StopInstancesInput{InstanceIds: instance})
	fake.Advance(time.Minute)
	r.does(t, &awsec2.StopInstancesInput{InstanceIds: instance})
	wantCode(t, try(), "IncorrectInstanceState", http.StatusBadRequest)
	fake.Advance(time.Minute)
	if err := try(); err != nil {
		t.Fatalf("attach to a stopped instance: %v", err)
	}
}

// A call takes effect even if the client gives up before.
func TestCallOutlivesClient(t *testing.T) {
	fake := clock.NewFake(time.Now())
	r := newRig(t, instant(), vpc.WithClock(fake))
	id := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	changed := make(chan vpc.Event, 1)
	r.cloud.Subscribe(func(e vpc.Event) { changed <- e })
	inject(t, r, spec.Fault{Action: "AssignPrivateIpAddresses", Kind: "latency", Latency: spec.Duration(time.Hour), Count: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := r.AssignPrivateIpAddresses(ctx, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: id, SecondaryPrivateIpAddressCount: aws.Int32(1)})
		ended <- err
	}()
	arrive(t, fake, ended)
	cancel()
	wantNoReply(t, <-ended)
	if e := r.describe(*id); len(e.PrivateIpAddresses) != 1 {
		t.Fatal("call took effect before its latency passed")
	}
	fake.Advance(time.Hour)
	if e := <-changed; e.Kind != vpc.AddressesChanged || len(e.ENI.Secondary) != 1 {
		t.Fatalf("event = %+v, want an address assignment", e)
	}
}
