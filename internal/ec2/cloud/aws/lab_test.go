package aws

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	sdkcreds "github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness/check"
)

// labSpec is one VPC with a roomy and a tiny subnet, dual stack, and nodes.
func labSpec() spec.Spec {
	p := netip.MustParsePrefix
	s := spec.Default()
	s.Throttle, s.Delays, s.Consistency = "none", spec.Delays{}, spec.Consistency{}
	s.VPCs[0].IPv6 = []netip.Prefix{p("2001:db8::/56")}
	s.VPCs[0].Subnets = []spec.Subnet{
		{Name: "a", Zone: "lab-1a", CIDR: p("10.0.0.0/22"), IPv6: p("2001:db8:0:1::/64"), Tags: map[string]string{"for": "pods"}},
		{Name: "tiny", Zone: "lab-1a", CIDR: p("10.0.8.0/28")},
	}
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups,
		spec.SecurityGroup{Name: "pods", Tags: map[string]string{"for": "pods", "by": "*"}},
		spec.SecurityGroup{Name: "others", Tags: map[string]string{"for": "pods", "by": "x"}})
	s.Instances = []spec.Instance{
		{Name: "node", Type: "t3.small", Subnet: "a", Role: "node"},
		{Name: "xen", Type: "t2.medium", Subnet: "a", Role: "node"},
	}
	return s
}

// labClient serves a lab and returns a client of it on the real clock.
func labClient(t *testing.T, s spec.Spec, change ...func(*setup)) (*endpoints.Cloud, cloud.API) {
	t.Helper()
	lab := check.Must(endpoints.Serve(s))(t)
	t.Cleanup(lab.Close)
	key := lab.Credentials()
	o := setup{Options{
		Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL, Logger: slog.New(slog.DiscardHandler),
		Credentials: sdkcreds.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	}, pace.Options{CallTimeout: time.Minute}}
	return lab, o.client(t, change...)
}

// eventually repeats a call that meets a state that has to pass.
func eventually(t *testing.T, call func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := call()
		if err == nil {
			return
		}
		if cloud.ClassOf(err) != cloud.Conflict || ctx.Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestLabLife takes an ENI through its whole life, with every call of the API.
func TestLabLife(t *testing.T) {
	lab, c := labClient(t, labSpec())
	ctx := t.Context()
	id := lab.Cloud.Instances.ID("node")

	node := check.Must(c.Instance(ctx, id))(t)
	if node.Type != "t3.small" || node.State != "running" || len(node.ENIs) != 1 || node.ENIs[0].Primary != node.Primary || node.ENIs[0].Attachment.DeviceIndex != 0 {
		t.Fatalf("instance %+v", node)
	}
	check.Equal(t, check.Must(c.Limits(ctx, node.Type))(t), (cloud.Limits{MaxENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Prefixes: true}), "limits")
	subnets := check.Must(c.Subnets(ctx, cloud.SubnetFilter{VPCID: node.VPCID, Zone: node.Zone, Tags: map[string]string{"for": "pods"}}))(t)
	if len(subnets) != 1 || subnets[0].ID != node.SubnetID || subnets[0].CIDR.String() != "10.0.0.0/22" || len(subnets[0].IPv6) != 1 {
		t.Fatalf("subnets %+v", subnets)
	}

	groups := check.Must(c.SecurityGroups(ctx, node.VPCID, nil))(t)
	if len(groups) != 3 || !slices.IsSorted(groups) || !slices.Contains(groups, node.ENIs[0].Groups[0]) {
		t.Errorf("security groups %v", groups)
	}
	if got := check.Must(c.SecurityGroups(ctx, node.VPCID, map[string]string{"for": "pods", "by": "*"}))(t); len(got) != 1 || !slices.Contains(groups, got[0]) {
		t.Errorf("security groups %v for the tags, of %v", got, groups)
	}
	if got := check.Must(c.RouteTables(ctx, node.VPCID))(t); len(got) != 1 || !got[0].Main || got[0].ID == "" {
		t.Errorf("route tables %+v, want the main one", got)
	}
	check.Equal(t, len(check.Must(c.SecurityGroups(ctx, "vpc-00000000000000000", nil))(t)), 0, "security groups of no VPC")

	req := cloud.CreateENI{
		SubnetID: node.SubnetID, Groups: node.ENIs[0].Groups, Description: "Berth", ClientToken: "intent-1", Amount: cloud.Amount{Addresses: 2},
		Tags: map[string]string{"berth.dev/created-at": "2026-01-02T03:04:05Z", "owner": "*"},
	}
	eni := check.Must(c.CreateENI(ctx, req))(t)
	if again := check.Must(c.CreateENI(ctx, req))(t); again.ID != eni.ID {
		t.Errorf("the same token made %s, then %s", eni.ID, again.ID)
	}
	if !maps.Equal(eni.Tags, req.Tags) || len(eni.Addresses) != 2 || !eni.Primary.IsValid() || len(eni.MAC) != 6 {
		t.Errorf("made %+v", eni)
	}
	detached := check.Must(c.ENIs(ctx, cloud.ENIFilter{Status: "available", VPCID: node.VPCID, Tags: map[string]string{"owner": "*"}}))(t)
	if len(detached) != 1 || detached[0].ID != eni.ID {
		t.Errorf("detached interfaces %+v", detached)
	}

	attachment := check.Must(c.AttachENI(ctx, eni.ID, id, 1))(t)
	check.OK(t, c.SetDeleteOnTermination(ctx, eni.ID, attachment, true))
	check.OK(t, c.Tag(ctx, eni.ID, map[string]string{"owner": "node"}))
	list := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{eni.ID, "eni-00000000000000000"}}))(t)
	if len(list) != 1 || list[0].Attachment == nil || !list[0].Attachment.DeleteOnTermination || list[0].Attachment.ID != attachment ||
		list[0].Attachment.InstanceID != id || list[0].Attachment.DeviceIndex != 1 || list[0].Tags["owner"] != "node" {
		t.Fatalf("attached %+v", list)
	}
	both := check.Must(c.Instances(ctx, []string{id, "i-00000000000000000", lab.Cloud.Instances.ID("xen")}))(t)
	if len(both) != 2 || both[0].State != "running" || both[0].VPCID != node.VPCID {
		t.Errorf("instances %+v", both)
	}
	tagged := check.Must(c.ENIs(ctx, cloud.ENIFilter{
		InstanceIDs: []string{id, lab.Cloud.Instances.ID("xen")}, VPCID: node.VPCID, Status: "in-use", Tags: map[string]string{"owner": "node"},
	}))(t)
	if len(tagged) != 1 || tagged[0].ID != eni.ID {
		t.Errorf("interfaces of both nodes with the tag: %+v", tagged)
	}

	addrs := check.Must(c.AssignAddresses(ctx, eni.ID, cloud.Amount{Addresses: 1}))(t)
	if len(addrs) != 1 || slices.Contains(eni.Addresses, addrs[0].Addr()) || !subnets[0].CIDR.Contains(addrs[0].Addr()) {
		t.Errorf("assigned %v", addrs)
	}
	check.OK(t, c.UnassignAddresses(ctx, eni.ID, append(addrs, cloud.HostPrefixes(eni.Addresses)...)))
	prefixes := check.Must(c.AssignAddresses(ctx, eni.ID, cloud.Amount{Prefixes: 2}))(t)
	if len(prefixes) != 2 || prefixes[0].Bits() != 28 {
		t.Errorf("assigned %v", prefixes)
	}
	list = check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{eni.ID}}))(t)
	if len(list[0].Addresses) != 0 || !slices.Equal(list[0].Prefixes, prefixes) {
		t.Errorf("now %+v", list[0])
	}
	check.OK(t, c.UnassignAddresses(ctx, eni.ID, prefixes))

	check.OK(t, c.DetachENI(ctx, attachment))
	eventually(t, func() error { return c.DeleteENI(ctx, eni.ID) })
	check.Equal(t, len(check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{eni.ID}}))(t)), 0, "left")
}

// TestLabIPv6 makes ENIs with both families, and gives and takes IPv6 addresses
// and prefixes.
func TestLabIPv6(t *testing.T) {
	lab, c := labClient(t, labSpec())
	ctx := t.Context()
	node := check.Must(c.Instance(ctx, lab.Cloud.Instances.ID("node")))(t)
	block := check.Must(c.Subnets(ctx, cloud.SubnetFilter{IDs: []string{node.SubnetID}}))(t)[0].IPv6[0]
	for _, n := range []cloud.Amount{{IPv6: 2}, {IPv6Prefixes: 1}, {Addresses: 1, IPv6Prefixes: 2}, {Prefixes: 1, IPv6: 1}} {
		e := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Amount: n}))(t)
		check.Equal(t, (cloud.Amount{Addresses: len(e.Addresses), Prefixes: len(e.Prefixes), IPv6: len(e.IPv6), IPv6Prefixes: len(e.IPv6Prefixes)}), n, "the new ENI has")
	}
	eni := node.ENIs[0].ID
	has := func(want ...netip.Prefix) {
		t.Helper()
		e := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{eni}}))(t)[0]
		if got := append(cloud.HostPrefixes(e.IPv6), e.IPv6Prefixes...); !slices.Equal(got, want) || len(e.Addresses)+len(e.Prefixes) != 0 {
			t.Errorf("has %+v, want %v", e, want)
		}
	}
	addrs := check.Must(c.AssignAddresses(ctx, eni, cloud.Amount{IPv6: 2}))(t)
	prefixes := check.Must(c.AssignAddresses(ctx, eni, cloud.Amount{IPv6Prefixes: 1}))(t)
	if len(addrs) != 2 || len(prefixes) != 1 || prefixes[0].Bits() != 80 || !block.Contains(prefixes[0].Addr()) {
		t.Errorf("assigned %v and %v of %v", addrs, prefixes, block)
	}
	has(addrs[0], addrs[1], prefixes[0])
	check.NoError(t, c.UnassignAddresses(ctx, eni, addrs[:1]))
	check.NoError(t, c.UnassignAddresses(ctx, eni, prefixes))
	has(addrs[1])
}

// TestLabRefusals meets every refusal that the lab has for our calls.
func TestLabRefusals(t *testing.T) {
	s := labSpec()
	s.Quotas.NetworkInterfaces = 8
	lab, c := labClient(t, s)
	ctx := t.Context()
	id := lab.Cloud.Instances.ID("node")
	node := check.Must(c.Instance(ctx, id))(t)
	xen := check.Must(c.Instance(ctx, lab.Cloud.Instances.ID("xen")))(t)
	tiny := check.Must(c.Subnets(ctx, cloud.SubnetFilter{VPCID: node.VPCID}))(t)
	tiny = slices.DeleteFunc(tiny, func(s cloud.Subnet) bool { return s.CIDR.Bits() != 28 })
	primary := node.ENIs[0]
	eni := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, ClientToken: "t"}))(t)
	attachment := check.Must(c.AttachENI(ctx, eni.ID, id, 1))(t)
	inTiny := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: tiny[0].ID, Amount: cloud.Amount{Addresses: 3}}))(t)
	const noENI, noInstance = "eni-00000000000000000", "i-00000000000000000"

	_, createGone := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-00000000000000000"})
	_, groupGone := c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, Groups: []string{"sg-00000000000000000"}})
	_, mismatch := c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID, ClientToken: "t", Description: "another"})
	_, full := c.AssignAddresses(ctx, inTiny.ID, cloud.Amount{Addresses: 9})
	_, noPrefix := c.AssignAddresses(ctx, inTiny.ID, cloud.Amount{Prefixes: 1})
	_, tooMany := c.AssignAddresses(ctx, primary.ID, cloud.Amount{Addresses: 4})
	_, xenPrefix := c.AssignAddresses(ctx, xen.ENIs[0].ID, cloud.Amount{Prefixes: 1})
	_, noIPv6 := c.AssignAddresses(ctx, inTiny.ID, cloud.Amount{IPv6: 1})
	_, createNoIPv6 := c.CreateENI(ctx, cloud.CreateENI{SubnetID: tiny[0].ID, Amount: cloud.Amount{IPv6Prefixes: 1}})
	_, tooManyIPv6 := c.AssignAddresses(ctx, primary.ID, cloud.Amount{IPv6: 5})
	_, tooManyPrefixes := c.AssignAddresses(ctx, primary.ID, cloud.Amount{IPv6Prefixes: 5})
	_, xenIPv6Prefix := c.AssignAddresses(ctx, xen.ENIs[0].ID, cloud.Amount{IPv6Prefixes: 1})
	_, assignIPv6Gone := c.AssignAddresses(ctx, noENI, cloud.Amount{IPv6: 1})
	_, instanceGone := c.Instance(ctx, noInstance)
	_, attachGone := c.AttachENI(ctx, noENI, id, 2)
	_, attachNowhere := c.AttachENI(ctx, inTiny.ID, noInstance, 2)
	_, indexTaken := c.AttachENI(ctx, inTiny.ID, id, 1)
	_, attached := c.AttachENI(ctx, eni.ID, id, 2)
	_, assignGone := c.AssignAddresses(ctx, noENI, cloud.Amount{Addresses: 1})
	_, malformed := c.AssignAddresses(ctx, "nonsense", cloud.Amount{Addresses: 1})
	_, noType := c.Limits(ctx, "z9.huge")
	_, third := c.AttachENI(ctx, inTiny.ID, id, 2)
	if third != nil {
		t.Fatal(third)
	}
	fourth := check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID}))(t)
	_, noSlot := c.AttachENI(ctx, fourth.ID, id, 3)
	var quota error
	for range 9 {
		if _, quota = c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID}); quota != nil {
			break
		}
	}
	for _, tt := range []struct {
		name string
		err  error
		want cloud.Class
		code string
	}{
		{"create in no subnet", createGone, cloud.Gone, "InvalidSubnetID.NotFound"},
		{"create with no group", groupGone, cloud.Gone, "NotFound"},
		{"a token for two requests", mismatch, cloud.Bug, "IdempotentParameterMismatch"},
		{"account's ENIs", quota, cloud.LimitReached, "NetworkInterfaceLimitExceeded"},
		{"subnet full", full, cloud.SubnetFull, "InsufficientFreeAddressesInSubnet"},
		{"no aligned prefix", noPrefix, cloud.SubnetFull, "InsufficientCidrBlocks"},
		{"addresses of the ENI", tooMany, cloud.LimitReached, "PrivateIpAddressLimitExceeded"},
		{"prefix on Xen", xenPrefix, cloud.Bug, "UnsupportedOperation"},
		{"IPv6 of a subnet without", noIPv6, cloud.SubnetFull, "InvalidParameterValue"},
		{"create with IPv6 of a subnet without", createNoIPv6, cloud.SubnetFull, "InvalidParameterValue"},
		{"IPv6 addresses of the ENI", tooManyIPv6, cloud.LimitReached, "PrivateIpAddressLimitExceeded"},
		{"IPv6 prefixes of the ENI", tooManyPrefixes, cloud.LimitReached, "PrivateIpAddressLimitExceeded"},
		{"IPv6 prefix on Xen", xenIPv6Prefix, cloud.Bug, "UnsupportedOperation"},
		{"assign IPv6 to no ENI", assignIPv6Gone, cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
		{"unassign IPv6 that is not there", c.UnassignAddresses(ctx, eni.ID, []netip.Prefix{netip.MustParsePrefix("2001:db8:0:1::99/128")}), cloud.Gone, "InvalidParameterValue"},
		{"unassign an IPv6 prefix that is not there", c.UnassignAddresses(ctx, eni.ID, []netip.Prefix{netip.MustParsePrefix("2001:db8:0:1:1::/80")}), cloud.Gone, "InvalidParameterValue"},
		{"no such instance", instanceGone, cloud.Gone, "InvalidInstanceID.NotFound"},
		{"attach no ENI", attachGone, cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
		{"attach to no instance", attachNowhere, cloud.Gone, "InvalidInstanceID.NotFound"},
		{"device index taken", indexTaken, cloud.Conflict, "InvalidParameterValue"},
		{"already attached", attached, cloud.Conflict, "InvalidNetworkInterface.InUse"},
		{"ENIs of the instance", noSlot, cloud.LimitReached, "AttachmentLimitExceeded"},
		{"assign to no ENI", assignGone, cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
		{"an ID that is none", malformed, cloud.Bug, "Malformed"},
		{"no such type", noType, cloud.Bug, "InvalidInstanceType"},
		{"delete while attached", c.DeleteENI(ctx, eni.ID), cloud.Conflict, "InvalidParameterValue"},
		{"delete no ENI", c.DeleteENI(ctx, noENI), cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
		{"detach nothing", c.DetachENI(ctx, "eni-attach-00000000000000000"), cloud.Gone, "InvalidAttachmentID.NotFound"},
		{"detach the primary", c.DetachENI(ctx, primary.Attachment.ID), cloud.Bug, "OperationNotPermitted"},
		{"unassign the primary address", c.UnassignAddresses(ctx, primary.ID, []netip.Prefix{cloud.HostPrefix(primary.Primary)}), cloud.Bug, "InvalidParameterValue"},
		{"unassign what is not there", c.UnassignAddresses(ctx, eni.ID, []netip.Prefix{netip.MustParsePrefix("10.0.3.200/32")}), cloud.Gone, "InvalidParameterValue"},
		{"modify no ENI", c.SetDeleteOnTermination(ctx, noENI, attachment, true), cloud.Gone, "InvalidNetworkInterfaceID.NotFound"},
		{"a reserved tag", c.Tag(ctx, eni.ID, map[string]string{"aws:x": "y"}), cloud.Bug, "InvalidParameterValue"},
	} {
		e, ok := errors.AsType[*cloud.Error](tt.err)
		if !ok || e.Class != tt.want || !strings.Contains(e.Code, tt.code) {
			t.Errorf("%s: got %v (class %v), want class %v, code %s", tt.name, tt.err, cloud.ClassOf(tt.err), tt.want, tt.code)
		}
	}
}

// TestLabLostReply: an assignment whose reply is lost is made once, and its
// effect is seen by describing.
func TestLabLostReply(t *testing.T) {
	lab, c := labClient(t, labSpec())
	ctx := t.Context()
	node := check.Must(c.Instance(ctx, lab.Cloud.Instances.ID("node")))(t)
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "DescribeNetworkInterfaces"} {
		if _, err := lab.Cloud.API.Inject(spec.Fault{Action: action, Kind: "lostReply", Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	eni := node.ENIs[0].ID
	if got, err := c.AssignAddresses(ctx, eni, cloud.Amount{Addresses: 2}); cloud.ClassOf(err) != cloud.Transient {
		t.Errorf("got %v, %v; want class transient", got, err)
	}
	check.Equal(t, lab.Cloud.API.Stats()["AssignPrivateIpAddresses"].Count, 1, "calls")
	list := check.Must(c.ENIs(ctx, cloud.ENIFilter{IDs: []string{eni}}))(t)
	check.Equal(t, len(list[0].Addresses), 2, "addresses")
	check.Must(c.CreateENI(ctx, cloud.CreateENI{SubnetID: node.SubnetID}))(t)
	if calls, enis := lab.Cloud.API.Stats()["CreateNetworkInterface"].Count, len(lab.Cloud.Snapshot().ENIs); calls != 2 || enis != 3 {
		t.Errorf("%d calls to create made the number of interfaces %d, want 2 calls and 3 interfaces", calls, enis)
	}
}

// TestLabRoleCredentials takes credentials from the metadata service, loses
// the right to make a call, and lives on when the credentials expire.
func TestLabRoleCredentials(t *testing.T) {
	clearAWS(t)
	s := labSpec()
	lab, err := endpoints.Serve(s)
	check.OK(t, err)
	t.Cleanup(lab.Close)
	lab.Cloud.Keys.SetCredentialTTL(5 * time.Second)
	o := Options{
		EC2Endpoint: lab.EC2URL, IMDSEndpoint: lab.IMDSURL("node"), Logger: slog.New(slog.DiscardHandler), HTTPClient: calm,
	}
	id := check.Must(NewMetadata(o).Identity(t.Context()))(t)
	c := setup{o, pace.Options{CallTimeout: time.Minute}}.client(t)
	node := check.Must(c.Instance(t.Context(), id.InstanceID))(t)
	if id.PrimaryIPv4 != node.Primary || id.PrimaryMAC.String() != node.ENIs[0].MAC.String() || id.SubnetID != node.SubnetID ||
		id.VPCID != node.VPCID || id.Zone != node.Zone || id.Region != lab.Cloud.Region() || id.InstanceType != node.Type || len(id.VPCCIDRs) != 2 {
		t.Errorf("metadata say %+v, EC2 says %+v", id, node)
	}

	lab.Cloud.API.Deny("DescribeRouteTables")
	_, err = c.RouteTables(t.Context(), id.VPCID)
	if cloud.ClassOf(err) != cloud.Permission || !strings.Contains(err.Error(), "UnauthorizedOperation") {
		t.Errorf("got %v, want class permission", err)
	}
	lab.Cloud.API.Allow("DescribeRouteTables")

	// Calls go on for longer than any one set of credentials lives. The lab
	// issues by the wall clock, so this takes real seconds.
	end := time.Now().Add(8 * time.Second)
	for time.Now().Before(end) {
		if _, err := c.RouteTables(t.Context(), id.VPCID); err != nil {
			t.Fatalf("after the credentials expired: %v", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}
