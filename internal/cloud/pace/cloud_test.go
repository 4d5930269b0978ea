package pace_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// answers is a cloud whose calls end as a script says, then well.
type answers struct {
	pace.Calls
	script []error
	calls  int
}

func (a *answers) next() error {
	a.calls++
	if len(a.script) == 0 {
		return nil
	}
	err := a.script[0]
	a.script = a.script[1:]
	return err
}

func (a *answers) CreateENI(context.Context, cloud.CreateENI) (cloud.ENI, error) {
	return cloud.ENI{ID: "eni-1"}, a.next()
}

func (a *answers) AttachENI(context.Context, string, string, int) (string, error) {
	return "attach-1", a.next()
}
func (a *answers) DeleteENI(context.Context, string) error { return a.next() }

// TestCloudRepeats: which calls are made again, and what comes out, for the
// kinds of calls that there are.
func TestCloudRepeats(t *testing.T) {
	refused := &cloud.Error{Class: cloud.Throttled, Code: "RequestLimitExceeded"}
	lost := &cloud.Error{Class: cloud.Transient}
	gone := &cloud.Error{Class: cloud.Gone, Code: "InvalidNetworkInterfaceID.NotFound"}
	denied := &cloud.Error{Class: cloud.Permission, Code: "RequestExpired"}
	useless := &pace.Reply{Err: lost, Answered: true}
	unsent := &pace.Reply{Err: lost, Unsent: true}
	curable := &pace.Reply{Err: denied, Cure: func() {}}
	create := func(token string) func(cloud.API) error {
		return func(api cloud.API) error {
			_, err := api.CreateENI(context.Background(), cloud.CreateENI{ClientToken: token})
			return err
		}
	}
	attach := func(api cloud.API) error { _, err := api.AttachENI(context.Background(), "e", "i", 1); return err }
	del := func(api cloud.API) error { return api.DeleteENI(context.Background(), "e") }
	for _, tt := range []struct {
		name   string
		call   func(cloud.API) error
		script []error
		calls  int
		want   cloud.Class
	}{
		{"create with a token, lost", create("t"), []error{lost, lost}, 3, cloud.Unknown},
		{"create without a token, lost", create(""), []error{lost}, 2, cloud.Unknown}, // it is given one
		{"create, throttled", create(""), []error{refused, refused}, 3, cloud.Unknown},
		{"attach, throttled, then lost", attach, []error{refused, lost}, 2, cloud.Transient},
		{"attach, a plain error", attach, []error{errors.New("unexpected")}, 1, cloud.Transient},
		{"delete, lost, then gone", del, []error{lost, gone}, 2, cloud.Unknown},
		{"delete, gone", del, []error{gone}, 1, cloud.Gone},
		{"delete, not sent, then gone", del, []error{unsent, gone}, 2, cloud.Gone},
		{"create, the answer of no use", create("t"), []error{useless}, 1, cloud.Transient},
		{"attach, refused for what is cured", attach, []error{curable}, 2, cloud.Unknown},
		{"attach, not cured", attach, []error{curable, curable}, 2, cloud.Permission},
		{"delete, lost, then throttled", del, []error{lost, refused, refused, refused, refused, refused, refused}, 1 + pace.ThrottledTries, cloud.Transient},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{script: tt.script}
				err := tt.call(pace.Cloud(a, pace.Options{}))
				if got := cloud.ClassOf(err); a.calls != tt.calls || got != tt.want || (err == nil) != (tt.want == cloud.Unknown) {
					t.Errorf("%d calls, class %v (%v); want %d, %v", a.calls, got, err, tt.calls, tt.want)
				}
			})
		})
	}
}

// TestCloudCountsAsEC2: a method makes as many calls as it takes with EC2.
func TestCloudCountsAsEC2(t *testing.T) {
	sim := cloudfake.New(cloudfake.Options{PageSize: 100})
	sim.AddSubnet("subnet-1", "a", "10.0.0.0/20", nil)
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprintf("i-%d", i))
		sim.AddInstance(ids[i], "m5.large", "subnet-1")
	}
	api, ctx := pace.Cloud(sim, pace.Options{}), t.Context()
	expect := func(what, action string, calls int) {
		t.Helper()
		if got := sim.Total(action).Calls; got != calls {
			t.Errorf("%s: %d calls of %s, want %d", what, got, action, calls)
		}
	}
	list, err := api.Instances(ctx, ids)
	if err != nil || len(list) != 450 {
		t.Fatalf("%d instances: %v", len(list), err)
	}
	expect("450 instances", pace.DescribeInstances.Action, 3)
	enis, err := api.ENIs(ctx, cloud.ENIFilter{InstanceIDs: ids})
	if err != nil || len(enis) != 450 {
		t.Fatalf("%d ENIs: %v", len(enis), err)
	}
	expect("of 450 instances", pace.DescribeENIs.Action, 5) // 200, 200 and 50 IDs in pages of 100
	sim.ResetStats()
	enis, err = api.ENIs(ctx, cloud.ENIFilter{VPCID: cloudfake.VPC})
	if err != nil || len(enis) != 450 {
		t.Fatalf("%d ENIs: %v", len(enis), err)
	}
	expect("a listing", pace.DescribeENIs.Action, 5)
	in, err := api.Instance(ctx, "i-7")
	if err != nil || len(in.ENIs) != 1 {
		t.Fatalf("%+v: %v", in, err)
	}
	expect("one instance", pace.DescribeInstances.Action, 1)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if l, err := api.Limits(ctx, "m5.large"); err != nil || l.MaxENIs != 3 {
				t.Errorf("%+v: %v", l, err)
			}
		})
	}
	all.Wait()
	if got := sim.Total(pace.DescribeTypes.Action).Calls; got != 1 {
		t.Errorf("%d calls for the limits of one type", got)
	}
}
