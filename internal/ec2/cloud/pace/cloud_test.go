package pace_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

// answers is a cloud whose calls end as a script says, then well.
type answers struct {
	pace.Calls
	script []error
	calls  int
	tokens map[string]bool // that associations were asked for with
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
func (a *answers) AssociateBranch(_ context.Context, as cloud.Association, token string) (cloud.Association, error) {
	if a.tokens == nil {
		a.tokens = map[string]bool{}
	}
	a.tokens[token] = true
	return as, a.next()
}
func (a *answers) DisassociateBranch(context.Context, string) error  { return a.next() }
func (a *answers) SetGroups(context.Context, string, []string) error { return a.next() }

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
	associate := func(token string) func(cloud.API) error {
		return func(api cloud.API) error {
			_, err := api.AssociateBranch(context.Background(), cloud.Association{TrunkID: "t", BranchID: "b", VLAN: 4094}, token)
			return err
		}
	}
	disassociate := func(api cloud.API) error { return api.DisassociateBranch(context.Background(), "a") }
	setGroups := func(api cloud.API) error { return api.SetGroups(context.Background(), "e", []string{"sg"}) }
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
		{"associate with a token, lost", associate("t"), []error{lost, lost}, 3, cloud.Unknown},
		{"associate without a token, lost", associate(""), []error{lost}, 2, cloud.Unknown},
		{"associate, lost, then gone", associate("t"), []error{lost, gone}, 2, cloud.Gone}, // of the ENIs, one
		{"associate, the answer of no use", associate("t"), []error{useless}, 1, cloud.Transient},
		{"disassociate, lost, then gone", disassociate, []error{lost, gone}, 2, cloud.Unknown},
		{"disassociate, gone", disassociate, []error{gone}, 1, cloud.Gone},
		{"disassociate, not sent, then gone", disassociate, []error{unsent, gone}, 2, cloud.Gone},
		{"set groups, lost", setGroups, []error{lost}, 2, cloud.Unknown},
		{"set groups, lost, then gone", setGroups, []error{lost, gone}, 2, cloud.Gone}, // the ENI
		{"delete, lost, then throttled", del, []error{lost, refused, refused, refused, refused, refused, refused}, 1 + pace.ThrottledTries, cloud.Transient},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{script: tt.script}
				err := tt.call(pace.Cloud(a, pace.Options{}))
				if got := cloud.ClassOf(err); a.calls != tt.calls || got != tt.want || (err == nil) != (tt.want == cloud.Unknown) {
					t.Errorf("%d calls, class %v (%v); want %d, %v", a.calls, got, err, tt.calls, tt.want)
				}
				if len(a.tokens) > 1 || a.tokens[""] {
					t.Errorf("associations were asked for with the tokens %v, want one", a.tokens)
				}
			})
		})
	}
}

// TestCloudChoosesByFamily: which action is called for what amount, and what is
// refused before, by what it says.
func TestCloudChoosesByFamily(t *testing.T) {
	four, six := netip.MustParsePrefix("10.0.0.20/32"), netip.MustParsePrefix("2001:db8::5/128")
	block4, block6 := netip.MustParsePrefix("10.0.0.32/28"), netip.MustParsePrefix("2001:db8:0:0:1::/80")
	sim := cloudfake.New(cloudfake.Options{})
	sim.State.AddSubnet("subnet-1", "a", "10.0.0.0/24", nil)
	sim.State.SetIPv6("subnet-1", "2001:db8::/64")
	sim.State.AddInstance("i-1", "m5.xlarge", "subnet-1")
	eni := sim.State.AddENI("i-1", 1, cloud.InterfaceOrdinary, nil)
	api, ctx := pace.Cloud(sim, pace.Options{}), t.Context()
	assign := func(n cloud.Amount) func() error {
		return func() error { _, err := api.AssignAddresses(ctx, eni, n); return err }
	}
	unassign := func(things ...netip.Prefix) func() error {
		return func() error { return api.UnassignAddresses(ctx, eni, things) }
	}
	ask := func(q cloud.CreateENI) func() error {
		q.SubnetID = "subnet-1"
		return func() error { _, err := api.CreateENI(ctx, q); return err }
	}
	create := func(n cloud.Amount) func() error { return ask(cloud.CreateENI{Amount: n}) }
	associate := func(vlan int) func() error {
		return func() error {
			_, err := api.AssociateBranch(ctx, cloud.Association{TrunkID: "eni-1", BranchID: "eni-2", VLAN: vlan}, "t")
			return err
		}
	}
	for _, tt := range []struct {
		name   string
		call   func() error
		action pace.Call
		says   string // empty: it is called
	}{
		{"an IPv4 address", assign(cloud.Amount{Addresses: 1}), pace.Assign, ""},
		{"an IPv4 prefix", assign(cloud.Amount{Prefixes: 1}), pace.Assign, ""},
		{"an IPv6 address", assign(cloud.Amount{IPv6: 1}), pace.AssignIPv6, ""},
		{"an IPv6 prefix", assign(cloud.Amount{IPv6Prefixes: 1}), pace.AssignIPv6, ""},
		{"take an IPv4 address", unassign(four), pace.Unassign, ""},
		{"take an IPv4 prefix", unassign(block4), pace.Unassign, ""},
		{"take an IPv6 address", unassign(six), pace.UnassignIPv6, ""},
		{"take an IPv6 prefix", unassign(block6), pace.UnassignIPv6, ""},
		{"create with none", create(cloud.Amount{}), pace.CreateENI, ""},
		{"create with addresses of both", create(cloud.Amount{Addresses: 2, IPv6: 2}), pace.CreateENI, ""},
		{"create with a kind of each", create(cloud.Amount{Addresses: 2, IPv6Prefixes: 1}), pace.CreateENI, ""},
		{"create with prefixes of both", create(cloud.Amount{Prefixes: 1, IPv6Prefixes: 1}), pace.CreateENI, ""},

		{"nothing", assign(cloud.Amount{}), pace.Assign, "no addresses and no prefixes asked for: expected 1 to 1000"},
		{"both families", assign(cloud.Amount{Addresses: 1, IPv6: 1}), pace.AssignIPv6, "IPv4 and IPv6 asked for: expected one family"},
		{"prefixes of both", assign(cloud.Amount{Prefixes: 1, IPv6Prefixes: 1}), pace.AssignIPv6, "expected one family"},
		{"both kinds of IPv4", assign(cloud.Amount{Addresses: 1, Prefixes: 2}), pace.Assign, "1 IPv4 addresses and 2 prefixes asked for: expected one of the two"},
		{"both kinds of IPv6", assign(cloud.Amount{IPv6: 1, IPv6Prefixes: 2}), pace.AssignIPv6, "1 IPv6 addresses and 2 prefixes asked for: expected one of the two"},
		{"fewer than none", assign(cloud.Amount{IPv6: 2, IPv6Prefixes: -1}), pace.AssignIPv6, "2 IPv6 addresses and -1 prefixes asked for: expected 0 to 1000"},
		{"too many", assign(cloud.Amount{IPv6: 1001}), pace.AssignIPv6, "1001 IPv6 addresses and 0 prefixes asked for: expected 0 to 1000"},
		{"take both families", unassign(four, six), pace.UnassignIPv6, "expected one family"},
		{"take both kinds", unassign(six, block6), pace.UnassignIPv6, "expected one of the two"},
		{"create with both kinds of IPv4", create(cloud.Amount{Addresses: 1, Prefixes: 1, IPv6: 1}), pace.CreateENI, "1 IPv4 addresses and 1 prefixes"},
		{"create with both kinds of IPv6", create(cloud.Amount{Addresses: 1, IPv6Prefixes: 1, IPv6: 1}), pace.CreateENI, "1 IPv6 addresses and 1 prefixes"},
		{"create with fewer than none", create(cloud.Amount{Addresses: 1, IPv6Prefixes: -1}), pace.CreateENI, "-1 prefixes"},
		{"far too many", assign(cloud.Amount{Addresses: 1<<33 + 1}), pace.Assign, "expected 0 to 1000"},
		{"take both kinds of IPv4", unassign(four, block4), pace.Unassign, "expected one of the two"},
		{"create a branch", ask(cloud.CreateENI{Type: cloud.InterfaceBranch}), pace.CreateENI, "type \"branch\""},
		{"a primary IPv6 address", ask(cloud.CreateENI{Primary: six.Addr()}), pace.CreateENI, "expected an IPv4 address"},
		{"an IPv6 address of IPv4", ask(cloud.CreateENI{IPv6Address: four.Addr()}), pace.CreateENI, "expected an IPv6 address"},
		{"an IPv6 address and a number", ask(cloud.CreateENI{IPv6Address: six.Addr(), Amount: cloud.Amount{IPv6: 1}}), pace.CreateENI, "or a number of them"},
		{"VLAN 0", associate(0), pace.AssociateBranch, "expected 1 to 4094"},
		{"VLAN 4095", associate(4095), pace.AssociateBranch, "expected 1 to 4094"},
		{"no groups", func() error { return api.SetGroups(ctx, eni, nil) }, pace.ModifyENI, "expected one at least"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim.Front.ResetStats()
			err := tt.call()
			if tt.says == "" {
				if all, of := sim.Front.Total().Calls, sim.Front.Total(tt.action.Action).Calls; all != 1 || of != 1 {
					t.Errorf("%d calls, %d of %s; want 1 of that (%v)", all, of, tt.action.Action, err)
				}
				return
			}
			e, ok := errors.AsType[*cloud.Error](err)
			if !ok || e.Class != cloud.Bug || e.Op != tt.action.Action || !strings.Contains(e.Message, tt.says) || sim.Front.Total().Calls != 0 {
				t.Errorf("got %v after %d calls; want class bug of %s that says %q", err, sim.Front.Total().Calls, tt.action.Action, tt.says)
			}
		})
	}
}

// TestNothingNeedsNoCall: a request for nothing succeeds without a call.
func TestNothingNeedsNoCall(t *testing.T) {
	a := &answers{}
	api, ctx := pace.Cloud(a, pace.Options{}), t.Context()
	_, err := api.Instances(ctx, nil)
	check.NoError(t, errors.Join(err, api.UnassignAddresses(ctx, "eni-1", nil), api.Tag(ctx, "eni-1", nil)))
}

// TestCloudCountsAsEC2: a method makes as many calls as it takes with EC2.
func TestCloudCountsAsEC2(t *testing.T) {
	sim := cloudfake.New(cloudfake.Options{PageSize: 100})
	sim.State.AddSubnet("subnet-1", "a", "10.0.0.0/20", nil)
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprintf("i-%d", i))
		sim.State.AddInstance(ids[i], "m5.large", "subnet-1")
	}
	api, ctx := pace.Cloud(sim, pace.Options{}), t.Context()
	expect := func(what, action string, calls int) {
		t.Helper()
		check.Equal(t, sim.Front.Total(action).Calls, calls, "%s: calls of %s", what, action)
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
	sim.Front.ResetStats()
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
	check.Equal(t, sim.Front.Total(pace.DescribeTypes.Action).Calls, 1, "calls for the limits of one type")
}
