package ec2api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// EC2 refuses each of these calls, so clients must not rely on them.
func TestCallsThatEC2Refuses(t *testing.T) {
	r := newRig(t, instant())
	a := r.subnet("a")
	id := r.cloud.Snapshot().InstanceENIs(r.cloud.Instances.ID("node-a"))[0].ID
	image := []string{"ImageId", "ami-0123456789abcdef0", "MinCount", "1", "MaxCount", "1", "SubnetId", a}
	two := func(name, value string) []string {
		return []string{"NetworkInterfaceId", id, name + ".1", value, name + ".2", value}
	}
	var tagged []string
	for i := range 1001 {
		tagged = append(tagged, fmt.Sprintf("ResourceId.%d", i+1), id)
	}
	for _, tc := range []struct {
		name, action string
		params       []string
		code         string
	}{
		{"unknown group", "CreateNetworkInterface", []string{"SubnetId", a, "SecurityGroupId.1", "sg-0123456789abcdef0"}, "InvalidSecurityGroupID.NotFound"},
		{"malformed group ID", "CreateNetworkInterface", []string{"SubnetId", a, "SecurityGroupId.1", "default"}, "InvalidSecurityGroupID.NotFound"},
		{"unknown group of an instance", "RunInstances", append(image, "SecurityGroupId.1", "sg-0123456789abcdef0"), "InvalidGroup.NotFound"},
		{"malformed VPC ID", "DescribeVpcs", []string{"VpcId.1", "prod"}, "InvalidVpcID.Malformed"},
		{"unknown version", "DescribeVpcs", []string{"Version", "2031-01-01"}, "NoSuchVersion"},
		{"missing version", "DescribeVpcs", []string{"Version", ""}, "MissingParameter"},
		{"token too long", "CreateNetworkInterface", []string{"SubnetId", a, "ClientToken", strings.Repeat("t", 65)}, "InvalidClientToken"},
		{"token not ASCII", "RunInstances", append(image, "ClientToken", "ü"), "InvalidClientToken"},
		{"duplicate address", "AssignPrivateIpAddresses", two("PrivateIpAddress", "10.0.1.77"), "InvalidParameterValue"},
		{"duplicate prefix", "AssignPrivateIpAddresses", two("Ipv4Prefix", "10.0.1.64/28"), "InvalidParameterValue"},
		{"primary address repeated as secondary", "CreateNetworkInterface", []string{
			"SubnetId", a, "PrivateIpAddress", "10.0.1.77", "PrivateIpAddresses.1.PrivateIpAddress", "10.0.1.77",
		}, "InvalidParameterValue"},
		{"two primary addresses", "CreateNetworkInterface", []string{
			"SubnetId", a, "PrivateIpAddresses.1.PrivateIpAddress", "10.0.1.77", "PrivateIpAddresses.1.Primary", "true",
			"PrivateIpAddresses.2.PrivateIpAddress", "10.0.1.77", "PrivateIpAddresses.2.Primary", "true",
		}, "InvalidParameterCombination"},
		{"too many resources to tag", "CreateTags", append(tagged, "Tag.1.Key", "k", "Tag.1.Value", "v"), "InvalidParameterValue"},
		{"creation as a branch", "CreateNetworkInterface", []string{"SubnetId", a, "InterfaceType", "branch"}, "InvalidParameterValue"},
		{"address of an EFA-only ENI", "CreateNetworkInterface", []string{"SubnetId", a, "InterfaceType", "efa-only", "PrivateIpAddress", "10.0.1.77"}, "InvalidParameterCombination"},
		{"addresses of an EFA-only ENI", "CreateNetworkInterface", []string{"SubnetId", a, "InterfaceType", "efa-only", "SecondaryPrivateIpAddressCount", "2"}, "InvalidParameterCombination"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rig{t, r.cloud, r.Client}
			r.wantRefusal(r.query(tc.action, tc.params...), tc.code, http.StatusBadRequest)
		})
	}
	r.wantRefusal(r.query("CreateNetworkInterface", "SubnetId", a, "ClientToken", strings.Repeat("t", 64)), "", http.StatusOK)
	r.wantRefusal(r.query("CreateTags", append(tagged[:2000], "Tag.1.Key", "k", "Tag.1.Value", "v")...), "", http.StatusOK)
}

// A signature must cover all headers of AWS.
func TestUnsignedHeaders(t *testing.T) {
	r := newRig(t, instant())
	body := "Action=DescribeVpcs&Version=2016-11-15"
	r.wantRefusal(r.send(r.signed(body, "X-Amz-Meta", "signed")), "", http.StatusOK)
	req := r.signed(body)
	req.Header.Set("X-Amz-Meta", "unsigned")
	r.wantRefusal(r.send(req), "AuthFailure", http.StatusUnauthorized)
}

// An ENI of type efa-only has a MAC address but no IP address, and cannot get one.
func TestEFAOnly(t *testing.T) {
	s := instant()
	s.Instances[0].Type = "p5.48xlarge"
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, NetworkCard: 1, Type: "efa-only"}}
	r := newRig(t, s)
	free := func() int { n, _ := r.cloud.Snapshot().Subnet("a"); return n.Free }
	before := free()
	e := r.create(awsec2.CreateNetworkInterfaceInput{InterfaceType: types.NetworkInterfaceCreationTypeEfaOnly})
	if e.PrivateIpAddress != nil || len(e.PrivateIpAddresses) != 0 || *e.MacAddress == "" || free() != before {
		t.Fatalf("new ENI = %+v, %d of %d addresses free; want no address taken", e, free(), before)
	}
	_, err := r.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: e.NetworkInterfaceId, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	wantCode(t, err, "UnsupportedOperation", http.StatusBadRequest)
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
	if err := r.cloud.Snapshot().Check(); err != nil || free() != before {
		t.Errorf("%d of %d addresses free, %v; want all", free(), before, err)
	}
}

// More than 1000 ENIs can only be listed with pagination or an indexed filter.
func TestUnpaginatedENIs(t *testing.T) {
	s := instant()
	s.Throttle = "none"
	r := newRig(t, s)
	subnet := r.subnet("a")
	list := func(in awsec2.DescribeNetworkInterfacesInput) (int, error) {
		out, err := r.DescribeNetworkInterfaces(t.Context(), &in)
		if err != nil {
			return 0, err
		}
		return len(out.NetworkInterfaces), nil
	}
	make1 := func(n int) {
		for range n {
			if _, err := r.cloud.ENIs.Create(vpc.CreateRequest{SubnetID: subnet}); err != nil {
				t.Fatal(err)
			}
		}
	}
	make1(998)
	if n, err := list(awsec2.DescribeNetworkInterfacesInput{}); n != 1000 {
		t.Fatalf("unpaginated list: %d ENIs, %v; want 1000", n, err)
	}
	make1(1)
	_, err := list(awsec2.DescribeNetworkInterfacesInput{})
	wantCode(t, err, "OperationNotPermitted", http.StatusBadRequest)
	_, err = list(awsec2.DescribeNetworkInterfacesInput{Filters: filters("status", "available")})
	wantCode(t, err, "OperationNotPermitted", http.StatusBadRequest)
	if n, err := list(awsec2.DescribeNetworkInterfacesInput{Filters: filters("subnet-id", subnet)}); n != 1000 {
		t.Errorf("list of the subnet: %d ENIs, %v; want 1000", n, err)
	}
	if n, err := list(awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(1000)}); n != 1000 {
		t.Errorf("page: %d ENIs, %v; want 1000", n, err)
	}
	_, err = list(awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(1001)})
	wantCode(t, err, "InvalidParameterValue", http.StatusBadRequest)
}

// The default spec is eventually consistent: new resources are described after a delay.
func TestDefaultSpecIsEventuallyConsistent(t *testing.T) {
	r := newRig(t, spec.Default(), vpc.WithClock(clock.NewFake(time.Now())))
	e := r.create(awsec2.CreateNetworkInterfaceInput{})
	in := &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{*e.NetworkInterfaceId}}
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", in)
	fake, ok := r.cloud.Clock().(*clock.Fake)
	if !ok {
		t.Fatalf("clock is %T, want *clock.Fake", r.cloud.Clock())
	}
	fake.Advance(200 * time.Millisecond)
	r.describe(*e.NetworkInterfaceId)
}
