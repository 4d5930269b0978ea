package ec2api_test

import (
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

func TestInstanceLifecycle(t *testing.T) {
	r := newRig(t, instant())
	in := &awsec2.RunInstancesInput{
		ImageId: aws.String("ami-0123456789abcdef0"), InstanceType: "t3.small", MinCount: aws.Int32(2), MaxCount: aws.Int32(2),
		SubnetId: aws.String(r.subnet("a")), ClientToken: aws.String("once"), IamInstanceProfile: &types.IamInstanceProfileSpecification{Name: aws.String("node")},
		TagSpecifications: tagSpec(types.ResourceTypeInstance, "Name", "worker"),
	}
	first, err := r.RunInstances(t.Context(), in)
	if err != nil || len(first.Instances) != 2 || len(first.Instances[0].NetworkInterfaces) != 1 {
		t.Fatalf("RunInstances() = %+v, %v; want two instances with one ENI each", first, err)
	}
	again, err := r.RunInstances(t.Context(), in)
	if err != nil || *again.Instances[0].InstanceId != *first.Instances[0].InstanceId {
		t.Fatalf("RunInstances() with the same token = %+v, %v; want the same instances", again, err)
	}
	id := *first.Instances[0].InstanceId
	state := func() types.Instance {
		t.Helper()
		out, err := r.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{id}})
		ok(t, err)
		return out.Reservations[0].Instances[0]
	}
	if i := state(); i.State.Name != "running" || i.InstanceType != "t3.small" || *i.Placement.AvailabilityZone != "lab-1a" || *i.Tags[0].Value != "worker" {
		t.Fatalf("new instance = %+v, want running with its type, zone and tag", i)
	}
	kept := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.attachID(kept, id, 1)
	if i := state(); len(i.NetworkInterfaces) != 2 || *i.NetworkInterfaces[1].NetworkInterfaceId != kept {
		t.Fatalf("interfaces = %+v, want the attached ENI second", i.NetworkInterfaces)
	}
	ids := []string{id}
	if out, err := r.StopInstances(t.Context(), &awsec2.StopInstancesInput{InstanceIds: ids}); err != nil || out.StoppingInstances[0].PreviousState.Name != "running" {
		t.Fatalf("StopInstances() = %+v, %v; want previous state running", out, err)
	}
	if i := state(); i.State.Name != "stopped" || len(i.NetworkInterfaces) != 2 {
		t.Fatalf("stopped instance = %+v, want state stopped with both ENIs", i)
	}
	if _, err := r.StartInstances(t.Context(), &awsec2.StartInstancesInput{InstanceIds: ids}); err != nil || state().State.Name != "running" {
		t.Fatalf("state after start = %+v, %v; want running", state().State, err)
	}
	primary := *state().NetworkInterfaces[0].NetworkInterfaceId
	if _, err := r.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: ids}); err != nil || state().State.Name != "terminated" {
		t.Fatalf("state after termination = %+v, %v; want terminated", state().State, err)
	}
	if e := r.describe(kept); e.Status != "available" {
		t.Fatalf("ENI without DeleteOnTermination is %s, want available", e.Status)
	}
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{primary}})
	r.refuses(t, "IncorrectInstanceState", &awsec2.StartInstancesInput{InstanceIds: ids})
}

func (r rig) attachID(eni, instanceID string, device int32) {
	r.Helper()
	_, err := r.AttachNetworkInterface(r.Context(), &awsec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &eni, InstanceId: &instanceID, DeviceIndex: &device,
	})
	if err != nil {
		r.Fatal(err)
	}
}

func TestRunInstancesErrors(t *testing.T) {
	s := instant()
	s.Throttle = "none"
	r := newRig(t, s)
	for code, change := range map[string]func(*awsec2.RunInstancesInput){
		"InvalidSubnetID.NotFound":          func(in *awsec2.RunInstancesInput) { in.SubnetId = aws.String("subnet-0123456789abcdef0") },
		"InvalidParameterValue":             func(in *awsec2.RunInstancesInput) { in.InstanceType = "m5.lorge" },
		"InvalidParameterCombination":       func(in *awsec2.RunInstancesInput) { in.MinCount = aws.Int32(2) },
		"InsufficientFreeAddressesInSubnet": func(in *awsec2.RunInstancesInput) { in.MaxCount = aws.Int32(1000); in.InstanceType = "t3.nano" },
		"UnknownParameter":                  func(in *awsec2.RunInstancesInput) { in.EbsOptimized = aws.Bool(true) },
		"InvalidInterface.IpAddressLimitExceeded": func(in *awsec2.RunInstancesInput) {
			in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{{
				DeviceIndex: aws.Int32(0), SubnetId: in.SubnetId, SecondaryPrivateIpAddressCount: aws.Int32(2),
			}}
			in.SubnetId = nil
		},
	} {
		in := &awsec2.RunInstancesInput{
			ImageId: aws.String("ami-0123456789abcdef0"), InstanceType: "t3.nano", MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
			SubnetId: aws.String(r.subnet("a")),
		}
		change(in)
		if *in.MaxCount == 1000 { // the first 900 nearly fill the subnet
			if _, err := r.cloud.Instances.Run(vpc.LaunchRequest{SubnetID: *in.SubnetId, Type: "t3.nano", Count: 900}); err != nil {
				t.Fatal(err)
			}
		}
		before := len(r.cloud.Snapshot().ENIs)
		r.refuses(t, code, in)
		if snapshot := r.cloud.Snapshot(); len(snapshot.ENIs) != before || snapshot.Check() != nil {
			t.Fatalf("after %s: %d ENIs, want %d; consistency: %v", code, len(snapshot.ENIs), before, snapshot.Check())
		}
	}
}

func TestFilterInstances(t *testing.T) {
	r := newRig(t, instant())
	snapshot := r.cloud.Snapshot()
	a, _ := snapshot.Instance("node-a")
	address := snapshot.InstanceENIs(a.ID)[0].Primary.String()
	for name, fs := range map[string][]types.Filter{
		"name":              filters("tag:Name", "node-a"),
		"state and zone":    filters("instance-state-name", "running", "availability-zone", "lab-1a"),
		"address":           filters("private-ip-address", address),
		"interface":         filters("network-interface.addresses.private-ip-address", address),
		"subnet":            filters("subnet-id", a.SubnetID),
		"ID with wildcards": filters("instance-id", a.ID[:8]+"*"),
	} {
		if got, err := r.find("DescribeInstances", fs); err != nil || !slices.Equal(got, []string{a.ID}) {
			t.Errorf("instances by %s = %v, %v; want %s", name, got, err, a.ID)
		}
	}
	for code, id := range map[string]string{"InvalidInstanceID.NotFound": "i-0123456789abcdef0", "InvalidInstanceID.Malformed": "node-a"} {
		r.refuses(t, code, &awsec2.DescribeInstancesInput{InstanceIds: []string{id}})
		r.refuses(t, code, &awsec2.TerminateInstancesInput{InstanceIds: []string{id}})
	}
}
