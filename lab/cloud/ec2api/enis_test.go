package ec2api_test

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func tagSpec(kind types.ResourceType, key, value string) []types.TagSpecification {
	return []types.TagSpecification{{ResourceType: kind, Tags: []types.Tag{{Key: &key, Value: &value}}}}
}

func TestENILifecycle(t *testing.T) {
	r := newRig(t, instant())
	e := r.create(awsec2.CreateNetworkInterfaceInput{
		Description: aws.String("spare"), SecondaryPrivateIpAddressCount: aws.Int32(3),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{{Key: aws.String("owner"), Value: aws.String("berth")}},
		}},
	})
	if e.Status != "pending" || len(e.PrivateIpAddresses) != 4 || len(e.TagSet) != 1 {
		t.Fatalf("new ENI = %+v, want pending with four addresses and one tag", e)
	}
	attachment := r.attach(*e.NetworkInterfaceId, "node-a", 1)
	got := r.describe(*e.NetworkInterfaceId)
	if got.Status != types.NetworkInterfaceStatusInUse || *got.Attachment.AttachmentId != attachment || *got.Attachment.DeviceIndex != 1 ||
		got.Attachment.Status != types.AttachmentStatusAttached || *got.Attachment.DeleteOnTermination || *got.Description != "spare" {
		t.Fatalf("attached ENI = %+v, want in-use at device index 1", got)
	}
	_, err := r.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: e.NetworkInterfaceId,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: &attachment, DeleteOnTermination: aws.Bool(true)},
	})
	if err != nil || !*r.describe(*e.NetworkInterfaceId).Attachment.DeleteOnTermination {
		t.Fatalf("DeleteOnTermination is not set (error: %v)", err)
	}
	r.does(t, &awsec2.DetachNetworkInterfaceInput{AttachmentId: &attachment})
	if got := r.describe(*e.NetworkInterfaceId); got.Status != types.NetworkInterfaceStatusAvailable || got.Attachment != nil {
		t.Fatalf("detached ENI = %+v, want available", got)
	}
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
}

func TestCreateErrors(t *testing.T) {
	s := instant()
	s.Quotas.NetworkInterfaces = 4
	s.VPCs = append(s.VPCs, spec.VPC{
		Name: "other", CIDRs: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")},
		Subnets: []spec.Subnet{{Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("172.16.0.0/28")}},
	})
	r := newRig(t, s)
	r.create(awsec2.CreateNetworkInterfaceInput{PrivateIpAddress: aws.String("10.0.1.10")})
	group := r.cloud.Snapshot().Groups
	foreign := group[slices.IndexFunc(group, func(g vpc.SecurityGroup) bool { return g.VPCID != r.cloud.Snapshot().Subnets[0].VPCID })].ID
	home := r.cloud.Snapshot().Subnets[0].ID
	a, tiny := r.subnet("a"), r.subnet("tiny")
	for _, tc := range []struct {
		name string
		in   awsec2.CreateNetworkInterfaceInput
		code string
	}{
		{"unknown subnet", awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String("subnet-0123456789abcdef0")}, "InvalidSubnetID.NotFound"},
		{"malformed subnet ID", awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String("subnet-a")}, "InvalidSubnetID.Malformed"},
		{"unknown group", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, Groups: []string{"sg-0123456789abcdef0"}}, "InvalidSecurityGroupID.NotFound"},
		{"group of another VPC", awsec2.CreateNetworkInterfaceInput{SubnetId: &home, Groups: []string{foreign}}, "InvalidParameter"},
		{"address in use", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, PrivateIpAddress: aws.String("10.0.1.10")}, "InvalidIPAddress.InUse"},
		{"reserved address", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, PrivateIpAddress: aws.String("10.0.0.1")}, "InvalidParameterValue"},
		{"full subnet", awsec2.CreateNetworkInterfaceInput{SubnetId: &tiny, SecondaryPrivateIpAddressCount: aws.Int32(11)}, "InsufficientFreeAddressesInSubnet"},
		{"no free prefix block", awsec2.CreateNetworkInterfaceInput{SubnetId: &tiny, Ipv4PrefixCount: aws.Int32(1)}, "InsufficientCidrBlocks"},
		{"addresses and prefixes", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, SecondaryPrivateIpAddressCount: aws.Int32(1), Ipv4PrefixCount: aws.Int32(1)}, "InvalidParameterCombination"},
		{"tags for another resource type", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, TagSpecifications: tagSpec(types.ResourceTypeInstance, "k", "v")}, "InvalidParameterValue"},
		{"reserved tag", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, TagSpecifications: tagSpec(types.ResourceTypeNetworkInterface, "aws:k", "v")}, "InvalidParameterValue"},
		{"unsupported by the lab", awsec2.CreateNetworkInterfaceInput{SubnetId: &a, EnablePrimaryIpv6: aws.Bool(true)}, "UnknownParameter"},
		{"quota", awsec2.CreateNetworkInterfaceInput{SubnetId: &a}, "NetworkInterfaceLimitExceeded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "quota" {
				r.create(awsec2.CreateNetworkInterfaceInput{})
			}
			r.refuses(t, tc.code, &tc.in)
		})
	}
}

func TestClientToken(t *testing.T) {
	r := newRig(t, instant())
	in := awsec2.CreateNetworkInterfaceInput{ClientToken: aws.String("once"), SecondaryPrivateIpAddressCount: aws.Int32(2)}
	first, again := r.create(in), r.create(in)
	if *first.NetworkInterfaceId != *again.NetworkInterfaceId {
		t.Fatalf("calls with the same token created %s and %s", *first.NetworkInterfaceId, *again.NetworkInterfaceId)
	}
	in.SecondaryPrivateIpAddressCount = aws.Int32(3)
	in.SubnetId = aws.String(r.subnet("a"))
	r.refuses(t, "IdempotentParameterMismatch", &in)
	if n := len(r.cloud.Snapshot().ENIs); n != 3 {
		t.Fatalf("%d ENIs, want 3: two of the nodes and one new", n)
	}
}

func TestAttachErrors(t *testing.T) {
	s := instant()
	s.Instances = append(s.Instances, spec.Instance{Name: "old", Type: "m4.large", Subnet: "a"}, spec.Instance{Name: "gone", Type: "m5.large", Subnet: "a"})
	r := newRig(t, s)
	ok(t, r.cloud.Instances.Terminate("gone"))
	gone, _ := r.cloud.Snapshot().Instance("gone")
	id := func(name string) string { return r.cloud.Instances.ID(name) }
	used := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.attach(used, "node-a", 1)
	free := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	prefixed := *r.create(awsec2.CreateNetworkInterfaceInput{Ipv4PrefixCount: aws.Int32(1)}).NetworkInterfaceId
	full := *r.create(awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(10)}).NetworkInterfaceId
	for _, tc := range []struct {
		name, eni, instance string
		device, card        int32
		code                string
	}{
		{"unknown ENI", "eni-0123456789abcdef0", id("node-a"), 2, 0, "InvalidNetworkInterfaceID.NotFound"},
		{"unknown instance", free, "i-0123456789abcdef0", 2, 0, "InvalidInstanceID.NotFound"},
		{"malformed instance ID", free, "node-a", 2, 0, "InvalidInstanceID.Malformed"},
		{"ENI in use", used, id("node-a"), 2, 0, "InvalidNetworkInterface.InUse"},
		{"device index in use", free, id("node-a"), 1, 0, "InvalidParameterValue"},
		{"no such network card", free, id("node-a"), 2, 1, "InvalidParameterValue"},
		{"another availability zone", free, id("node-b"), 1, 0, "InvalidParameterCombination"},
		{"terminated", free, gone.ID, 1, 0, "IncorrectInstanceState"},
		{"prefixes on a Xen type", prefixed, id("old"), 1, 0, "UnsupportedOperation"},
		{"too many addresses", full, id("node-a"), 2, 0, "PrivateIpAddressLimitExceeded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := r.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{
				NetworkInterfaceId: &tc.eni, InstanceId: &tc.instance, DeviceIndex: &tc.device, NetworkCardIndex: &tc.card,
			})
			wantCode(t, err, tc.code, http.StatusBadRequest)
		})
	}
	r.attach(free, "node-a", 2) // an m5.large supports three ENIs
	more := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	_, err := r.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: more, InstanceId: aws.String(id("node-a")), DeviceIndex: aws.Int32(3),
	})
	wantCode(t, err, "AttachmentLimitExceeded", http.StatusBadRequest)
}

func TestDetachAndDeleteErrors(t *testing.T) {
	r := newRig(t, instant())
	snapshot := r.cloud.Snapshot()
	primary := snapshot.InstanceENIs(r.cloud.Instances.ID("node-a"))[0]
	r.refuses(t, "OperationNotPermitted", &awsec2.DetachNetworkInterfaceInput{AttachmentId: &primary.Attachment.ID})
	r.refuses(t, "InvalidAttachmentID.NotFound", &awsec2.DetachNetworkInterfaceInput{AttachmentId: aws.String("eni-attach-0123456789abcdef0")})
	r.refuses(t, "InvalidParameterValue", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &primary.ID})
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String("eni-0123456789abcdef0")})
}

func TestModify(t *testing.T) {
	s := instant()
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{Name: "pods"})
	r := newRig(t, s)
	pods, _ := r.cloud.Snapshot().Group("pods")
	id := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	for _, in := range []awsec2.ModifyNetworkInterfaceAttributeInput{
		{Groups: []string{pods.ID}},
		{Description: &types.AttributeValue{Value: aws.String("renamed")}},
		{SourceDestCheck: &types.AttributeBooleanValue{Value: aws.Bool(false)}},
	} {
		in.NetworkInterfaceId = id
		r.does(t, &in)
	}
	e := r.describe(*id)
	if len(e.Groups) != 1 || *e.Groups[0].GroupName != "pods" || *e.Description != "renamed" || *e.SourceDestCheck {
		t.Fatalf("modified ENI = %+v, want the group pods, the new description and no source/destination check", e)
	}
	for code, in := range map[string]awsec2.ModifyNetworkInterfaceAttributeInput{
		"InvalidSecurityGroupID.NotFound": {Groups: []string{"sg-0123456789abcdef0"}},
		"InvalidParameterCombination":     {},
		"InvalidAttachmentID.NotFound": {Attachment: &types.NetworkInterfaceAttachmentChanges{
			AttachmentId: aws.String("eni-attach-0123456789abcdef0"), DeleteOnTermination: aws.Bool(true)}},
	} {
		in.NetworkInterfaceId = id
		r.refuses(t, code, &in)
	}
}
