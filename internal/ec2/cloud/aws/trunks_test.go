package aws

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	sdkcreds "github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness/check"
)

// world is an EC2 with an m5.large, which supports nine branches, a t3.small, which supports
// none, one subnet in their zone, one in another zone, and six security groups.
type world struct {
	cloud.API                       // through pace, which retries calls
	raw         pace.Calls          // without retries
	large       string              // the m5.large
	small       string              // the t3.small
	home, away  string              // subnets: 10.0.0.0/22 in the instances' zone, and one in another
	groups      []string            // IDs of six security groups
	lose        func(action string) // loses the reply of the next call
	calls       func(action string) int
	terminate   func(instance string) // leaves the ENIs without DeleteOnTermination
	unknownENI  string                // the ID of an ENI that does not exist
	unknownLink string                // the ID of an association that does not exist
}

// worlds are the clouds that must behave alike: the in-memory one, and the strict lab's EC2
// through the real SDK.
var worlds = map[string]func(*testing.T) world{"in memory": inMemoryWorld, "lab": labWorld}

func inMemoryWorld(*testing.T) world {
	c := cloudfake.New(cloudfake.Options{})
	c.State.AddSubnet("subnet-1", "a", "10.0.0.0/22", nil)
	c.State.AddSubnet("subnet-2", "b", "10.0.4.0/22", nil)
	c.State.AddInstance("i-1", "m5.large", "subnet-1")
	c.State.AddInstance("i-2", "t3.small", "subnet-1")
	w := world{
		API: pace.Cloud(c, pace.Options{}), raw: c, large: "i-1", small: "i-2", home: "subnet-1", away: "subnet-2", groups: []string{cloudfake.Group},
		lose: func(action string) {
			c.Front.Inject(cloudfake.Fault{Action: action, Times: 1, Err: cloudfake.Err(cloud.Transient, ""), After: true})
		},
		calls:      func(action string) int { return c.Front.Total(action).Calls },
		terminate:  c.State.Terminate,
		unknownENI: "eni-9999", unknownLink: "trunk-assoc-9999",
	}
	for n := range 5 {
		w.groups = append(w.groups, fmt.Sprint("sg-", 2+n))
		c.State.AddSecurityGroup(w.groups[1+n], nil)
	}
	return w
}

func labWorld(t *testing.T) world {
	s := spec.Default()
	s.Throttle, s.Delays, s.Consistency = "none", spec.Delays{}, spec.Consistency{}
	for n := range 5 {
		s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{Name: fmt.Sprint(n)})
	}
	s.Instances = []spec.Instance{{Name: "large", Type: "m5.large", Subnet: "a"}, {Name: "small", Type: "t3.small", Subnet: "a"}}
	lab := check.Must(endpoints.Serve(s))(t)
	t.Cleanup(lab.Close)
	key := lab.Credentials()
	raw, err := New(t.Context(), Options{
		Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL, Logger: slog.New(slog.DiscardHandler),
		Credentials: sdkcreds.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	})
	check.OK(t, err)
	w := world{
		API: pace.Cloud(raw, pace.Options{}), raw: raw, large: lab.Cloud.Instances.ID("large"), small: lab.Cloud.Instances.ID("small"),
		lose: func(action string) {
			if _, err := lab.Cloud.API.Inject(spec.Fault{Action: action, Kind: "lostReply", Count: 1}); err != nil {
				t.Fatal(err)
			}
		},
		calls: func(action string) int { return lab.Cloud.API.Stats()[action].Count },
		terminate: func(id string) {
			check.OK(t, lab.Cloud.Instances.Terminate(id))
		},
		unknownENI: "eni-00000000000000000", unknownLink: "trunk-assoc-00000000000000000",
	}
	for name, id := range map[string]*string{"a": &w.home, "b": &w.away} {
		s, ok := lab.Cloud.Snapshot().Subnet(name)
		if !ok {
			t.Fatalf("no subnet %s", name)
		}
		*id = s.ID
	}
	for _, g := range lab.Cloud.Snapshot().Groups {
		w.groups = append(w.groups, g.ID)
	}
	return w
}

// everywhere runs a test in each world.
func everywhere(t *testing.T, test func(*testing.T, world)) {
	t.Helper()
	for name, build := range worlds {
		t.Run(name, func(t *testing.T) { test(t, build(t)) })
	}
}

// refused fails the test unless err has the given class and code.
func refused(t *testing.T, what string, err error, class cloud.Class, code string) {
	t.Helper()
	e, ok := errors.AsType[*cloud.Error](err)
	if !ok || e.Class != class || e.Code != code {
		t.Errorf("%s: got %v (class %v), want class %v, code %s", what, err, cloud.ClassOf(err), class, code)
	}
}

// create creates an ENI, in the subnet of the instances if the request names none.
func (w world) create(t *testing.T, req cloud.CreateENI) cloud.ENI {
	t.Helper()
	if req.SubnetID == "" {
		req.SubnetID = w.home
	}
	return check.Must(w.CreateENI(t.Context(), req))(t)
}

// trunk creates a trunk and attaches it to the m5.large.
func (w world) trunk(t *testing.T, index int) (id, attachment string) {
	t.Helper()
	e := w.create(t, cloud.CreateENI{Type: cloud.InterfaceTrunk})
	return e.ID, check.Must(w.AttachENI(t.Context(), e.ID, w.large, index))(t)
}

// associate creates an ENI and makes it a branch of a trunk.
func (w world) associate(t *testing.T, trunk string, vlan int) cloud.Association {
	t.Helper()
	a := cloud.Association{TrunkID: trunk, BranchID: w.create(t, cloud.CreateENI{}).ID, VLAN: vlan}
	return check.Must(w.AssociateBranch(t.Context(), a, ""))(t)
}

// look describes an ENI, which must exist.
func (w world) look(t *testing.T, id string) cloud.ENI {
	t.Helper()
	list := check.Must(w.ENIs(t.Context(), cloud.ENIFilter{IDs: []string{id}}))(t)
	if len(list) != 1 {
		t.Fatalf("%s is listed as %+v", id, list)
	}
	return list[0]
}

// TestTrunkLife covers the lifecycle of a trunk and a branch.
func TestTrunkLife(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := t.Context()
		e := w.create(t, cloud.CreateENI{Type: cloud.InterfaceTrunk, Amount: cloud.Amount{Addresses: 2}})
		if e.Type != cloud.InterfaceTrunk || len(e.Addresses) != 2 {
			t.Errorf("made %+v", e)
		}
		attachment := check.Must(w.AttachENI(ctx, e.ID, w.large, 1))(t)
		b := w.create(t, cloud.CreateENI{Primary: netip.MustParseAddr("10.0.3.77"), Tags: map[string]string{"nic": "x*"}})
		if b.Type != cloud.InterfaceOrdinary || b.Primary.String() != "10.0.3.77" {
			t.Errorf("made %+v", b)
		}
		asked := cloud.Association{TrunkID: e.ID, BranchID: b.ID, VLAN: 4094}
		a := check.Must(w.AssociateBranch(ctx, asked, "once"))(t)
		if asked.ID = a.ID; a.ID == "" || a != asked {
			t.Errorf("associated %+v, want %+v", a, asked)
		}
		if e, b := w.look(t, e.ID), w.look(t, b.ID); e.Type != cloud.InterfaceTrunk || e.Attachment == nil || e.Attachment.DeviceIndex != 1 ||
			b.Type != cloud.InterfaceBranch || b.Status != "in-use" || b.Attachment != nil {
			t.Errorf("a branch %+v of the trunk %+v", b, e)
		}
		check.OK(t, w.SetGroups(ctx, b.ID, w.groups[:5]))
		check.Must(w.AssignAddresses(ctx, b.ID, cloud.Amount{Addresses: 9}))(t)
		_, err := w.raw.AssignAddresses(ctx, b.ID, cloud.Amount{Addresses: 1}) // an ENI of an m5.large has at most ten
		refused(t, "an address too many of a branch", err, cloud.LimitReached, "PrivateIpAddressLimitExceeded")
		if got := w.look(t, b.ID); len(got.Addresses) != 9 || !slices.Equal(sorted(got.Groups), sorted(w.groups[:5])) {
			t.Errorf("the branch has %+v", got)
		}

		check.OK(t, w.DisassociateBranch(ctx, a.ID))
		if got := w.look(t, b.ID); got.Type != cloud.InterfaceOrdinary || got.Status != "available" {
			t.Errorf("afterwards it is %+v", got)
		}
		refused(t, "again", w.DisassociateBranch(ctx, a.ID), cloud.Gone, "InvalidAssociationID.NotFound")
		check.Must(w.AssociateBranch(ctx, cloud.Association{TrunkID: e.ID, BranchID: b.ID, VLAN: 4094}, ""))(t)
		refused(t, "to detach a trunk that has branches", w.DetachENI(ctx, attachment), cloud.Conflict, "DependencyViolation")
		check.OK(t, w.DeleteENI(ctx, b.ID)) // also ends the association
		w.associate(t, e.ID, 4094)
	})
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// TestTrunkIsDetached: a trunk without branches can be detached and deleted like other ENIs.
func TestTrunkIsDetached(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		id, attachment := w.trunk(t, 1)
		a := w.associate(t, id, 1)
		check.OK(t, w.DisassociateBranch(t.Context(), a.ID))
		eventually(t, func() error { return w.DetachENI(t.Context(), attachment) })
		eventually(t, func() error { return w.DeleteENI(t.Context(), id) })
	})
}

// TestBranchesOfALostInstance: the branches of a terminated instance become detached ENIs.
func TestBranchesOfALostInstance(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		kept, _ := w.trunk(t, 1)
		gone, attachment := w.trunk(t, 2)
		check.OK(t, w.SetDeleteOnTermination(t.Context(), gone, attachment, true))
		one, two := w.associate(t, kept, 7), w.associate(t, gone, 7)
		w.terminate(w.large)
		var left []cloud.ENI
		eventually(t, func() (err error) {
			left, err = w.ENIs(t.Context(), cloud.ENIFilter{IDs: []string{kept, gone, one.BranchID, two.BranchID}, Status: "available"})
			if err == nil && len(left) < 3 {
				err = &cloud.Error{Class: cloud.Conflict, Message: fmt.Sprintf("%+v", left)}
			}
			return err
		})
		types := map[string]cloud.InterfaceType{}
		for _, e := range left {
			types[e.ID] = e.Type
		}
		want := map[string]cloud.InterfaceType{kept: cloud.InterfaceTrunk, one.BranchID: cloud.InterfaceOrdinary, two.BranchID: cloud.InterfaceOrdinary}
		check.Same(t, types, want)
		refused(t, "the association", w.DisassociateBranch(t.Context(), one.ID), cloud.Gone, "InvalidAssociationID.NotFound")
	})
}

// TestTrunkRefusals covers the errors for trunks, branches and security groups.
func TestTrunkRefusals(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := t.Context()
		trunk, _ := w.trunk(t, 1)
		taken, free, loose := w.associate(t, trunk, 7), w.create(t, cloud.CreateENI{}).ID, w.create(t, cloud.CreateENI{Type: cloud.InterfaceTrunk}).ID
		attached := w.create(t, cloud.CreateENI{}).ID
		check.Must(w.AttachENI(ctx, attached, w.small, 1))(t)
		many, away := w.create(t, cloud.CreateENI{Amount: cloud.Amount{Addresses: 10}}).ID, w.create(t, cloud.CreateENI{SubnetID: w.away}).ID
		for _, tt := range []struct {
			name          string
			trunk, branch string
			vlan          int
			class         cloud.Class
			code          string
		}{
			{"no such trunk", w.unknownENI, free, 8, cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
			{"no such branch", trunk, w.unknownENI, 8, cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
			{"no trunk", attached, free, 8, cloud.Bug, "InvalidParameterValue"},
			{"a branch of itself", trunk, trunk, 8, cloud.Bug, "InvalidParameterValue"},
			{"a trunk as a branch", trunk, loose, 8, cloud.Bug, "InvalidParameterValue"},
			{"a branch as a trunk", taken.BranchID, free, 8, cloud.Bug, "InvalidParameterValue"},
			{"trunk not attached", loose, free, 8, cloud.Conflict, "IncorrectState"},
			{"VLAN 0", trunk, free, 0, cloud.Bug, "InvalidParameterValue"},
			{"VLAN 4095", trunk, free, 4095, cloud.Bug, "InvalidParameterValue"},
			{"VLAN in use", trunk, free, 7, cloud.Conflict, "InvalidVlanId.Duplicate"},
			{"a branch already", trunk, taken.BranchID, 8, cloud.Conflict, "InvalidNetworkInterface.InUse"},
			{"attached", trunk, attached, 8, cloud.Conflict, "InvalidNetworkInterface.InUse"},
			{"another zone", trunk, away, 8, cloud.Bug, "InvalidParameterCombination"},
			{"too many addresses", trunk, many, 8, cloud.LimitReached, "PrivateIpAddressLimitExceeded"},
		} {
			_, err := w.raw.AssociateBranch(ctx, cloud.Association{TrunkID: tt.trunk, BranchID: tt.branch, VLAN: tt.vlan}, tt.name)
			refused(t, tt.name, err, tt.class, tt.code)
		}
		refused(t, "disassociate nothing", w.raw.DisassociateBranch(ctx, w.unknownLink), cloud.Gone, "InvalidAssociationID.NotFound")
		_, err := w.raw.AttachENI(ctx, taken.BranchID, w.large, 2)
		refused(t, "attach a branch", err, cloud.Conflict, "InvalidNetworkInterface.InUse")
		_, err = w.raw.AttachENI(ctx, loose, w.small, 2)
		refused(t, "a trunk on a type without", err, cloud.Bug, "UnsupportedOperation")
		_, err = w.raw.CreateENI(ctx, cloud.CreateENI{SubnetID: w.home, Type: cloud.InterfaceBranch, ClientToken: "branch"})
		refused(t, "create a branch", err, cloud.Bug, "InvalidParameterValue")
		refused(t, "delete an attached trunk", w.raw.DeleteENI(ctx, trunk), cloud.Conflict, "InvalidParameterValue")

		refused(t, "groups of no ENI", w.raw.SetGroups(ctx, w.unknownENI, w.groups[:1]), cloud.Gone, "InvalidNetworkInterfaceID.NotFound")
		refused(t, "no such group", w.raw.SetGroups(ctx, free, []string{"sg-00000000000000000"}), cloud.Gone, "InvalidSecurityGroupID.NotFound")
		refused(t, "no group", w.raw.SetGroups(ctx, free, nil), cloud.Bug, "InvalidParameterCombination")
		refused(t, "six groups", w.raw.SetGroups(ctx, free, w.groups), cloud.LimitReached, "SecurityGroupsPerInterfaceLimitExceeded")
		_, err = w.raw.CreateENI(ctx, cloud.CreateENI{SubnetID: w.home, Groups: w.groups, ClientToken: "groups"})
		refused(t, "create with six groups", err, cloud.LimitReached, "SecurityGroupsPerInterfaceLimitExceeded")

		for vlan := range 8 {
			w.associate(t, trunk, 100+vlan)
		}
		_, err = w.raw.AssociateBranch(ctx, cloud.Association{TrunkID: trunk, BranchID: free, VLAN: 8}, "tenth")
		refused(t, "the tenth branch", err, cloud.LimitReached, "AttachmentLimitExceeded")
	})
}

// TestPrimaryAddressOfChoice: a new ENI has the requested primary address, which is free again
// once the ENI is deleted.
func TestPrimaryAddressOfChoice(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := t.Context()
		create := func(addr, token string) (cloud.ENI, error) {
			return w.raw.CreateENI(ctx, cloud.CreateENI{SubnetID: w.home, Primary: netip.MustParseAddr(addr), ClientToken: token})
		}
		const addr = "10.0.3.77"
		e := check.Must(create(addr, "1"))(t)
		if again := check.Must(create(addr, "1"))(t); again.ID != e.ID {
			t.Errorf("made %s, then %s", e.ID, again.ID)
		}
		for _, tt := range []struct {
			addr  string
			class cloud.Class
			code  string
		}{
			{addr, cloud.Conflict, "InvalidIPAddress.InUse"},
			{"10.0.3.255", cloud.Bug, "InvalidParameterValue"}, // reserved
			{"10.0.0.3", cloud.Bug, "InvalidParameterValue"},   // reserved
			{"10.0.4.9", cloud.Bug, "InvalidParameterValue"},   // of another subnet
			{"10.0.3.78", cloud.Bug, "IdempotentParameterMismatch"},
		} {
			token := tt.addr
			if tt.code == "IdempotentParameterMismatch" {
				token = "1"
			}
			_, err := create(tt.addr, token)
			refused(t, tt.addr, err, tt.class, tt.code)
		}
		check.OK(t, w.DeleteENI(ctx, e.ID))
		if e = check.Must(create(addr, "2"))(t); e.Primary.String() != addr {
			t.Errorf("made %+v", e)
		}
	})
}

// TestAssociatedOnce: requests with the same client token create one association, even if replies are
// lost. Disassociating and changing groups are safe to repeat too.
func TestAssociatedOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := t.Context()
		trunk, _ := w.trunk(t, 1)
		a := cloud.Association{TrunkID: trunk, BranchID: w.create(t, cloud.CreateENI{}).ID, VLAN: 7}
		for _, token := range []string{"", "once"} {
			before := w.calls("AssociateTrunkInterface")
			w.lose("AssociateTrunkInterface")
			first := check.Must(w.AssociateBranch(ctx, a, token))(t)
			if n := w.calls("AssociateTrunkInterface") - before; n != 2 || first.ID == "" {
				t.Errorf("%+v after %d calls, want 2", first, n)
			}
			if token != "" {
				if again := check.Must(w.AssociateBranch(ctx, a, token))(t); again != first {
					t.Errorf("%+v, then %+v", first, again)
				}
				other := a
				other.VLAN++
				_, err := w.raw.AssociateBranch(ctx, other, token)
				refused(t, "another request", err, cloud.Bug, "IdempotentParameterMismatch")
			}
			before = w.calls("DisassociateTrunkInterface")
			w.lose("DisassociateTrunkInterface")
			check.OK(t, w.DisassociateBranch(ctx, first.ID))
			if n, got := w.calls("DisassociateTrunkInterface")-before, w.look(t, a.BranchID); n != 2 || got.Status != "available" {
				t.Errorf("%+v after %d calls, want it available after 2", got, n)
			}
		}
		before := w.calls("ModifyNetworkInterfaceAttribute")
		w.lose("ModifyNetworkInterfaceAttribute")
		check.OK(t, w.SetGroups(ctx, a.BranchID, w.groups[1:3]))
		if n, got := w.calls("ModifyNetworkInterfaceAttribute")-before, w.look(t, a.BranchID); n != 2 || !slices.Equal(sorted(got.Groups), sorted(w.groups[1:3])) {
			t.Errorf("%+v after %d calls, want two groups after 2", got, n)
		}
	})
}

// TestFiltersOfBranches: ENIs are found by type, and by any of several values of a tag.
func TestFiltersOfBranches(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := t.Context()
		trunk, _ := w.trunk(t, 1)
		names := map[string]string{trunk: "trunk"}
		for name, tags := range map[string]map[string]string{
			"x": {"nic": "x", "of": "lab"}, "star": {"nic": "*", "of": "lab"}, "y": {"nic": "y", "of": "other"}, "none": {"of": "lab"}, "empty": {"nic": ""},
		} {
			names[w.create(t, cloud.CreateENI{Tags: tags}).ID] = name
		}
		for id, name := range names {
			if name == "x" || name == "star" {
				check.Must(w.AssociateBranch(ctx, cloud.Association{TrunkID: trunk, BranchID: id, VLAN: len(name)}, ""))(t)
			}
		}
		for id := range names {
			if names[id] == "none" {
				check.Must(w.AttachENI(ctx, id, w.large, 2))(t)
			}
		}
		many := []string{"x", "*"}
		for n := range 450 {
			many = append(many, fmt.Sprint("unknown-", n))
		}
		for _, tt := range []struct {
			name string
			f    cloud.ENIFilter
			want string
		}{
			{"branches", cloud.ENIFilter{Types: []cloud.InterfaceType{cloud.InterfaceBranch}}, "star x"},
			{"trunks", cloud.ENIFilter{Types: []cloud.InterfaceType{cloud.InterfaceTrunk}, InstanceID: w.large}, "trunk"},
			{"trunks and branches", cloud.ENIFilter{Types: []cloud.InterfaceType{cloud.InterfaceTrunk, cloud.InterfaceBranch}}, "star trunk x"},
			{"detached", cloud.ENIFilter{Status: "available"}, "empty y"},
			{"of the instance", cloud.ENIFilter{InstanceIDs: []string{w.large, w.small}, Status: "in-use"}, "none trunk"},
			{"any of three values", cloud.ENIFilter{Tagged: map[string][]string{"nic": {"y", "*", "z"}}}, "star y"},
			{"any of very many", cloud.ENIFilter{Tagged: map[string][]string{"nic": many}, Tags: map[string]string{"of": "lab"}, Status: "in-use"}, "star x"},
			{"very many and IDs", cloud.ENIFilter{Tagged: map[string][]string{"nic": many}, IDs: slices.Collect(maps.Keys(names))}, "star x"},
			{"an empty value", cloud.ENIFilter{Tagged: map[string][]string{"nic": {""}}}, "empty"},
			{"of two tags", cloud.ENIFilter{Tagged: map[string][]string{"nic": {"x", "y"}, "of": {"other"}}}, "y"},
			{"of no values", cloud.ENIFilter{Tagged: map[string][]string{"nic": nil}, Types: []cloud.InterfaceType{cloud.InterfaceBranch}}, "star x"},
		} {
			var got []string
			for _, e := range check.Must(w.ENIs(ctx, tt.f))(t) {
				if name, ok := names[e.ID]; ok { // the others are the instances' primary ENIs
					got = append(got, name)
				}
			}
			check.Equal(t, strings.Join(sorted(got), " "), tt.want, "%s: found", tt.name)
		}
	})
}
