package ec2api_test

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/iam"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// trunk creates a trunk and attaches it to an instance.
func (r rig) trunk(instance string, device int32) string {
	r.Helper()
	e := r.create(awsec2.CreateNetworkInterfaceInput{InterfaceType: types.NetworkInterfaceCreationTypeTrunk})
	r.attach(*e.NetworkInterfaceId, instance, device)
	return *e.NetworkInterfaceId
}

func associating(trunk, branch string, vlan int32) *awsec2.AssociateTrunkInterfaceInput {
	return &awsec2.AssociateTrunkInterfaceInput{TrunkInterfaceId: &trunk, BranchInterfaceId: &branch, VlanId: &vlan}
}

func (r rig) associate(trunk, branch string, vlan int32) types.TrunkInterfaceAssociation {
	r.Helper()
	out, err := r.AssociateTrunkInterface(r.Context(), associating(trunk, branch, vlan))
	if err != nil {
		r.Fatal(err)
	}
	return *out.InterfaceAssociation
}

// listAssociations lists the IDs of associations that a describe call returns.
func (r rig) listAssociations(in awsec2.DescribeTrunkInterfaceAssociationsInput) (ids []string) {
	r.Helper()
	out, err := r.DescribeTrunkInterfaceAssociations(r.Context(), &in)
	if err != nil {
		r.Fatal(err)
	}
	for _, a := range out.InterfaceAssociations {
		ids = append(ids, *a.AssociationId)
	}
	return ids
}

func TestBranchLifecycle(t *testing.T) {
	r := newRig(t, instant())
	trunk := r.trunk("node-a", 1)
	if got := r.describe(trunk); got.InterfaceType != "trunk" || got.Status != types.NetworkInterfaceStatusInUse || *got.Attachment.DeviceIndex != 1 {
		t.Fatalf("trunk = %+v, want in use at device index 1", got)
	}
	branch := *r.create(awsec2.CreateNetworkInterfaceInput{TagSpecifications: tagSpec("network-interface", "for", "pods")}).NetworkInterfaceId
	if got := r.describe(branch); got.InterfaceType != "interface" || got.Status != types.NetworkInterfaceStatusAvailable {
		t.Fatalf("future branch = %+v, want an available ordinary interface", got)
	}
	a := r.associate(trunk, branch, 7)
	if *a.TrunkInterfaceId != trunk || *a.BranchInterfaceId != branch || *a.VlanId != 7 || a.InterfaceProtocol != types.InterfaceProtocolTypeVlan || a.GreKey != nil {
		t.Fatalf("association = %+v, want trunk, branch and VLAN 7", a)
	}
	if got := r.describe(branch); got.InterfaceType != "branch" || got.Status != types.NetworkInterfaceStatusInUse || got.Attachment != nil {
		t.Fatalf("branch = %+v, want an in-use branch without attachment", got)
	}
	for name, value := range map[string]string{"interface-type": "branch", "status": "in-use", "tag:for": "pods"} {
		if got, err := r.find("DescribeNetworkInterfaces", append(filters(name, value), filters("network-interface-id", branch)...)); err != nil || len(got) != 1 {
			t.Errorf("branch with filter %s = %v, %v; want one", name, got, err)
		}
	}
	// The trunk appears as attached to the instance; the branch does not.
	node := r.cloud.Instances.ID("node-a")
	if got, err := r.find("DescribeNetworkInterfaces", filters("attachment.instance-id", node)); err != nil || len(got) != 2 || slices.Contains(got, branch) {
		t.Errorf("ENIs attached to the instance = %v, %v; want 2 without the branch", got, err)
	}
	instances, err := r.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{node}})
	ok(t, err)
	if got := instances.Reservations[0].Instances[0].NetworkInterfaces; len(got) != 2 || *got[1].InterfaceType != "trunk" {
		t.Errorf("interfaces of the instance = %+v, want the primary ENI and the trunk", got)
	}
	groups := r.cloud.Snapshot().Groups[0].ID
	r.does(t, &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: &branch, Groups: []string{groups}})
	r.does(t, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &branch, SecondaryPrivateIpAddressCount: aws.Int32(1)})

	r.does(t, &awsec2.DisassociateTrunkInterfaceInput{AssociationId: a.AssociationId})
	if got := r.describe(branch); got.InterfaceType != "interface" || got.Status != types.NetworkInterfaceStatusAvailable {
		t.Errorf("branch after disassociation = %+v, want an available ordinary interface", got)
	}
	r.refuses(t, "InvalidAssociationID.NotFound", &awsec2.DisassociateTrunkInterfaceInput{AssociationId: a.AssociationId})
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &branch})
}

func TestAssociateErrors(t *testing.T) {
	s := instant()
	s.VPCs = append(s.VPCs, spec.VPC{
		Name: "other", CIDRs: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")},
		Subnets: []spec.Subnet{{Name: "o", Zone: "lab-1a", CIDR: netip.MustParsePrefix("172.16.0.0/24")}},
	})
	s.Instances = append(s.Instances, spec.Instance{Name: "small", Type: "t3.small", Subnet: "a"})
	r := newRig(t, s)
	in := func(subnet string) string {
		return *r.create(awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet(subnet))}).NetworkInterfaceId
	}
	trunk, taken, free, attached := r.trunk("node-a", 1), in("a"), in("a"), in("a")
	r.associate(trunk, taken, 7)
	r.attach(attached, "small", 1)
	loose := *r.create(awsec2.CreateNetworkInterfaceInput{InterfaceType: "trunk"}).NetworkInterfaceId
	efa := *r.create(awsec2.CreateNetworkInterfaceInput{InterfaceType: "efa"}).NetworkInterfaceId
	many := *r.create(awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(10)}).NetworkInterfaceId
	for _, tc := range []struct {
		name, trunk, branch string
		vlan                int32
		code                string
	}{
		{"unknown trunk", "eni-0123456789abcdef0", free, 8, "InvalidNetworkInterfaceID.NotFound"},
		{"unknown branch", trunk, "eni-0123456789abcdef0", 8, "InvalidNetworkInterfaceID.NotFound"},
		{"malformed branch ID", trunk, "branch", 8, "InvalidNetworkInterfaceId.Malformed"},
		{"no trunk", attached, free, 8, "InvalidParameterValue"},
		{"trunk as branch", trunk, loose, 8, "InvalidParameterValue"},
		{"EFA as branch", trunk, efa, 8, "InvalidParameterValue"},
		{"detached trunk", loose, free, 8, "IncorrectState"},
		{"VLAN 0", trunk, free, 0, "InvalidParameterValue"},
		{"VLAN 4095", trunk, free, 4095, "InvalidParameterValue"},
		{"VLAN in use", trunk, free, 7, "InvalidVlanId.Duplicate"},
		{"ENI that is a branch already", trunk, taken, 8, "InvalidNetworkInterface.InUse"},
		{"attached", trunk, attached, 8, "InvalidNetworkInterface.InUse"},
		{"another availability zone", trunk, in("b"), 8, "InvalidParameterCombination"},
		{"another VPC", trunk, in("o"), 8, "InvalidParameterCombination"},
		{"too many addresses", trunk, many, 8, "PrivateIpAddressLimitExceeded"},
	} {
		t.Run(tc.name, func(t *testing.T) { r.refuses(t, tc.code, associating(tc.trunk, tc.branch, tc.vlan)) })
	}
	r.refuses(t, "MissingParameter", &awsec2.AssociateTrunkInterfaceInput{TrunkInterfaceId: &trunk, BranchInterfaceId: &free})
	r.refuses(t, "UnsupportedOperation", &awsec2.AssociateTrunkInterfaceInput{TrunkInterfaceId: &trunk, BranchInterfaceId: &free, GreKey: aws.Int32(8)})
	r.refuses(t, "InvalidAssociationID.NotFound", &awsec2.DisassociateTrunkInterfaceInput{AssociationId: aws.String("trunk-assoc-0123456789abcdef0")})
	r.refuses(t, "InvalidAssociationID.NotFound", &awsec2.DescribeTrunkInterfaceAssociationsInput{AssociationIds: []string{"trunk-assoc-0123456789abcdef0"}})
	// A branch cannot be attached, and an ENI cannot be created as a branch.
	r.refuses(t, "InvalidNetworkInterface.InUse", &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: &taken, InstanceId: aws.String(r.cloud.Instances.ID("node-a")), DeviceIndex: aws.Int32(2)})
	r.refuses(t, "InvalidParameterValue", &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("a")), InterfaceType: types.NetworkInterfaceCreationTypeBranch})
	// Not every type supports trunks, and an m5.large supports nine branches.
	r.refuses(t, "UnsupportedOperation", &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: &loose, InstanceId: aws.String(r.cloud.Instances.ID("small")), DeviceIndex: aws.Int32(2)})
	for vlan := range int32(8) {
		r.associate(trunk, in("a"), 100+vlan)
	}
	r.refuses(t, "AttachmentLimitExceeded", associating(trunk, free, 4094))
	ok(t, r.cloud.Snapshot().Check())
}

// A branch can have five security groups, like any ENI.
func TestBranchSecurityGroups(t *testing.T) {
	s := instant()
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{Name: name})
	}
	r := newRig(t, s)
	branch := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.associate(r.trunk("node-a", 1), *branch, 7)
	var groups []string
	for _, g := range r.cloud.Snapshot().Groups {
		groups = append(groups, g.ID)
	}
	r.refuses(t, "SecurityGroupsPerInterfaceLimitExceeded", &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: branch, Groups: groups})
	r.does(t, &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: branch, Groups: groups[:5]})
	if got := r.describe(*branch); len(got.Groups) != 5 || got.InterfaceType != "branch" {
		t.Errorf("branch = %+v, want a branch with five groups", got)
	}
}

// Calls with the same client token create and delete an association only once.
func TestAssociationClientTokens(t *testing.T) {
	r := newRig(t, instant())
	trunk := r.trunk("node-a", 1)
	branch := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	in := associating(trunk, branch, 7)
	in.ClientToken = aws.String("once")
	var first *string
	for range 2 {
		out, err := r.AssociateTrunkInterface(t.Context(), in)
		ok(t, err)
		if *out.ClientToken != "once" || first != nil && *first != *out.InterfaceAssociation.AssociationId {
			t.Fatalf("AssociateTrunkInterface() = %+v, want the token and the same association as before (%v)", out, first)
		}
		first = out.InterfaceAssociation.AssociationId
	}
	in.VlanId = aws.Int32(8)
	r.refuses(t, "IdempotentParameterMismatch", in)
	for range 2 {
		out, err := r.DisassociateTrunkInterface(t.Context(), &awsec2.DisassociateTrunkInterfaceInput{AssociationId: first, ClientToken: aws.String("gone")})
		ok(t, err)
		if !*out.Return || *out.ClientToken != "gone" {
			t.Errorf("DisassociateTrunkInterface() = %+v, want true with the token", out)
		}
	}
	r.refuses(t, "InvalidAssociationID.NotFound", &awsec2.DisassociateTrunkInterfaceInput{AssociationId: first, ClientToken: aws.String("again")})
}

func TestDescribeTrunkInterfaceAssociations(t *testing.T) {
	r := newRig(t, instant())
	trunk, other := r.trunk("node-a", 1), r.trunk("node-a", 2)
	byTrunk := map[string][]string{}
	for vlan := range int32(4) {
		for _, id := range []string{trunk, other} {
			a := r.associate(id, *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId, 1+vlan)
			byTrunk[id] = append(byTrunk[id], *a.AssociationId)
		}
	}
	slices.Sort(byTrunk[trunk])
	all := slices.Sorted(slices.Values(slices.Concat(byTrunk[trunk], byTrunk[other])))
	for name, tc := range map[string]struct {
		in   awsec2.DescribeTrunkInterfaceAssociationsInput
		want []string
	}{
		"all":      {awsec2.DescribeTrunkInterfaceAssociationsInput{}, all},
		"IDs":      {awsec2.DescribeTrunkInterfaceAssociationsInput{AssociationIds: all[1:3]}, all[1:3]},
		"protocol": {awsec2.DescribeTrunkInterfaceAssociationsInput{Filters: filters("interface-protocol", "VLAN")}, all},
		"GRE":      {awsec2.DescribeTrunkInterfaceAssociationsInput{Filters: filters("interface-protocol", "GRE")}, nil},
		"trunk":    {awsec2.DescribeTrunkInterfaceAssociationsInput{Filters: filters("trunk-interface-association.trunk-interface-id", trunk)}, byTrunk[trunk]},
		"page":     {awsec2.DescribeTrunkInterfaceAssociationsInput{MaxResults: aws.Int32(5)}, all[:5]},
	} {
		if got := r.listAssociations(tc.in); !slices.Equal(got, tc.want) {
			t.Errorf("associations by %s = %v, want %v", name, got, tc.want)
		}
	}
	r.refuses(t, "InvalidParameterValue", &awsec2.DescribeTrunkInterfaceAssociationsInput{MaxResults: aws.Int32(256)})
}

// A trunk with branches cannot be detached or deleted. Deleting a branch ends its association.
func TestDetachAndDeleteTrunks(t *testing.T) {
	r := newRig(t, instant())
	trunk := r.trunk("node-a", 1)
	attachment := r.describe(trunk).Attachment.AttachmentId
	branch := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.associate(trunk, branch, 7)
	r.refuses(t, "InvalidParameterValue", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &trunk})
	r.refuses(t, "DependencyViolation", &awsec2.DetachNetworkInterfaceInput{AttachmentId: attachment, Force: aws.Bool(true)})
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &branch})
	if got := r.listAssociations(awsec2.DescribeTrunkInterfaceAssociationsInput{}); len(got) != 0 {
		t.Errorf("associations of a deleted branch = %v, want none", got)
	}
	r.associate(trunk, *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId, 7) // the VLAN is free again
	r.does(t, &awsec2.DisassociateTrunkInterfaceInput{AssociationId: &r.listAssociations(awsec2.DescribeTrunkInterfaceAssociationsInput{})[0]})
	r.does(t, &awsec2.DetachNetworkInterfaceInput{AttachmentId: attachment})
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &trunk})
}

// Terminating an instance deletes its trunk if the attachment says so, and makes the branches available.
func TestTerminationFreesBranches(t *testing.T) {
	r := newRig(t, instant())
	var kept, gone string
	for device, deleted := range []bool{true, false} {
		trunk := r.trunk("node-a", int32(1+device))
		r.does(t, &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: &trunk, Attachment: &types.NetworkInterfaceAttachmentChanges{
			AttachmentId: r.describe(trunk).Attachment.AttachmentId, DeleteOnTermination: &deleted,
		}})
		branch := *r.create(awsec2.CreateNetworkInterfaceInput{Description: aws.String("branch")}).NetworkInterfaceId
		r.associate(trunk, branch, 7)
		if kept = trunk; deleted {
			gone = trunk
		}
	}
	ok(t, r.cloud.Instances.Terminate("node-a"))
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{gone}})
	if got := r.describe(kept); got.Status != types.NetworkInterfaceStatusAvailable || got.InterfaceType != "trunk" {
		t.Errorf("trunk without DeleteOnTermination = %+v, want available", got)
	}
	got, err := r.find("DescribeNetworkInterfaces", append(filters("description", "branch"), filters("status", "available")...))
	if left := r.listAssociations(awsec2.DescribeTrunkInterfaceAssociationsInput{}); err != nil || len(got) != 2 || len(left) != 0 {
		t.Errorf("available branches %v, %v, associations %v; want two and none", got, err, left)
	}
	ok(t, r.cloud.Snapshot().Check())
}

// A permission to associate covers all ENIs: the action supports no resource types, so that a statement
// with ENIs or tags of ENIs permits nothing (Service Authorization Reference, "Actions defined by
// Amazon EC2").
func TestAssociationPermissionsIgnoreResources(t *testing.T) {
	for policy, want := range map[string]iam.Decision{
		`{"Effect": "Allow", "Action": "ec2:AssociateTrunkInterface", "Resource": "*"}`:                                   iam.Allowed,
		`{"Effect": "Allow", "Action": "ec2:AssociateTrunkInterface", "Resource": "arn:aws:ec2:*:*:network-interface/*"}`: iam.NotAllowed,
	} {
		s := instant()
		s.AccessKeys = []spec.AccessKey{{ID: "AKIALABLABLABLABLAB2", Secret: "secret", Policy: `{"Version": "2012-10-17", "Statement": [` + policy + `]}`}}
		r := newRig(t, s)
		_, err := r.AssociateTrunkInterface(t.Context(), associating("eni-0123456789abcdef0", "eni-0123456789abcdef1", 7))
		if want == iam.Allowed {
			wantCode(t, err, "InvalidNetworkInterfaceID.NotFound", http.StatusBadRequest)
		} else {
			wantCode(t, err, "UnauthorizedOperation", http.StatusForbidden)
		}
	}
}

// Instances of a spec can have trunks.
func TestSpecWithTrunk(t *testing.T) {
	s := instant()
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Type: "trunk", DeleteOnTermination: true}}
	r := newRig(t, s)
	i := slices.IndexFunc(r.cloud.Snapshot().ENIs, func(e vpc.ENI) bool { return e.Type == "trunk" })
	r.associate(r.cloud.Snapshot().ENIs[i].ID, *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId, 7)
}
