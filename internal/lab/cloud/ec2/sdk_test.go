package ec2_test

import (
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/berthnet/berth/internal/lab/cloud/endpoints"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// rig is a served lab and an official SDK client of it that does not retry.
type rig struct {
	*testing.T
	lab *endpoints.Cloud
	*awsec2.Client
}

func newRig(t *testing.T, s spec.Spec, opts ...vpc.Option) rig {
	t.Helper()
	lab, err := endpoints.Serve(s, opts...)
	ok(t, err)
	t.Cleanup(lab.Close)
	return rig{t, lab, client(lab, static(lab), 1)}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(lab *endpoints.Cloud, creds aws.CredentialsProvider, attempts int) *awsec2.Client {
	return awsec2.New(awsec2.Options{
		BaseEndpoint: &lab.EC2URL, Region: lab.Cloud.Region(), Credentials: creds, RetryMaxAttempts: attempts,
	})
}

func static(lab *endpoints.Cloud) aws.CredentialsProvider {
	k := lab.Credentials()
	return credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, "")
}

// instant is the default spec without delays and lag.
func instant() spec.Spec {
	s := spec.Default()
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	return s
}

// wantCode checks the EC2 code and HTTP status of an error.
func wantCode(t *testing.T, err error, code string, status int) {
	t.Helper()
	var api smithy.APIError
	var resp *smithyhttp.ResponseError
	if !errors.As(err, &api) || !errors.As(err, &resp) {
		t.Fatalf("got %v, want %s", err, code)
	}
	if api.ErrorCode() != code || resp.HTTPStatusCode() != status {
		t.Fatalf("got %d %s (%s), want %d %s", resp.HTTPStatusCode(), api.ErrorCode(), api.ErrorMessage(), status, code)
	}
}

func (r rig) subnet(name string) string {
	r.Helper()
	s, ok := r.lab.Cloud.Snapshot().Subnet(name)
	if !ok {
		r.Fatalf("no subnet %s", name)
	}
	return s.ID
}

func (r rig) create(in awsec2.CreateNetworkInterfaceInput) types.NetworkInterface {
	r.Helper()
	if in.SubnetId == nil {
		in.SubnetId = aws.String(r.subnet("a"))
	}
	out, err := r.CreateNetworkInterface(r.Context(), &in)
	if err != nil {
		r.Fatal(err)
	}
	return *out.NetworkInterface
}

func (r rig) attach(eni, instance string, device int32) string {
	r.Helper()
	out, err := r.AttachNetworkInterface(r.Context(), &awsec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &eni, InstanceId: aws.String(r.lab.Cloud.InstanceID(instance)), DeviceIndex: &device,
	})
	if err != nil {
		r.Fatal(err)
	}
	return *out.AttachmentId
}

func (r rig) describe(eni string) types.NetworkInterface {
	r.Helper()
	out, err := r.DescribeNetworkInterfaces(r.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{eni}})
	if err != nil || len(out.NetworkInterfaces) != 1 {
		r.Fatalf("describe %s: %d, %v", eni, len(out.NetworkInterfaces), err)
	}
	return out.NetworkInterfaces[0]
}

func TestLifeOfAnENI(t *testing.T) {
	r := newRig(t, instant())
	e := r.create(awsec2.CreateNetworkInterfaceInput{
		Description: aws.String("spare"), SecondaryPrivateIpAddressCount: aws.Int32(3),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{{Key: aws.String("owner"), Value: aws.String("berth")}},
		}},
	})
	if e.Status != "pending" || len(e.PrivateIpAddresses) != 4 || len(e.TagSet) != 1 {
		t.Fatalf("created %+v", e)
	}
	attachment := r.attach(*e.NetworkInterfaceId, "node-a", 1)
	got := r.describe(*e.NetworkInterfaceId)
	if got.Status != types.NetworkInterfaceStatusInUse || *got.Attachment.AttachmentId != attachment || *got.Attachment.DeviceIndex != 1 ||
		got.Attachment.Status != types.AttachmentStatusAttached || *got.Attachment.DeleteOnTermination || *got.Description != "spare" {
		t.Fatalf("attached %+v", got)
	}
	_, err := r.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: e.NetworkInterfaceId,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: &attachment, DeleteOnTermination: aws.Bool(true)},
	})
	if err != nil || !*r.describe(*e.NetworkInterfaceId).Attachment.DeleteOnTermination {
		t.Fatalf("DeleteOnTermination is not set: %v", err)
	}
	r.does(t, &awsec2.DetachNetworkInterfaceInput{AttachmentId: &attachment})
	if got := r.describe(*e.NetworkInterfaceId); got.Status != types.NetworkInterfaceStatusAvailable || got.Attachment != nil {
		t.Fatalf("detached %+v", got)
	}
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
	r.refuses(t, "InvalidNetworkInterfaceID.NotFound", &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
}
