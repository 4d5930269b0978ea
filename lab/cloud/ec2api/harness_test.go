package ec2api_test

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// rig is a served cloud with an official SDK client that does not retry.
type rig struct {
	*testing.T
	cloud *endpoints.Cloud
	*awsec2.Client
}

func newRig(t *testing.T, s spec.Spec, opts ...vpc.Option) rig {
	t.Helper()
	cloud, err := endpoints.Serve(s, opts...)
	ok(t, err)
	t.Cleanup(cloud.Close)
	return rig{t, cloud, client(cloud, static(cloud), 1)}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(cloud *endpoints.Cloud, creds aws.CredentialsProvider, attempts int) *awsec2.Client {
	return awsec2.New(awsec2.Options{
		BaseEndpoint: &cloud.EC2URL, Region: cloud.Region(), Credentials: creds, RetryMaxAttempts: attempts,
	})
}

func static(cloud *endpoints.Cloud) aws.CredentialsProvider {
	k := cloud.Credentials()
	return credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, "")
}

// instant returns the default spec without delays and eventual consistency.
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
		t.Fatalf("error = %v, want an API error with code %s", err, code)
	}
	if api.ErrorCode() != code || resp.HTTPStatusCode() != status {
		t.Fatalf("error = %d %s (%s), want %d %s", resp.HTTPStatusCode(), api.ErrorCode(), api.ErrorMessage(), status, code)
	}
}

func (r rig) subnet(name string) string {
	r.Helper()
	s, ok := r.cloud.Snapshot().Subnet(name)
	if !ok {
		r.Fatalf("subnet %s not found", name)
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
		NetworkInterfaceId: &eni, InstanceId: aws.String(r.cloud.Instances.ID(instance)), DeviceIndex: &device,
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
		r.Fatalf("describe ENI %s: %d found, %v", eni, len(out.NetworkInterfaces), err)
	}
	return out.NetworkInterfaces[0]
}

// call makes the call that an SDK's input belongs to.
func (r rig) call(in any) (out reflect.Value, err error) {
	results := reflect.ValueOf(r.Client).MethodByName(actionOf(in)).Call([]reflect.Value{reflect.ValueOf(r.Context()), reflect.ValueOf(in)})
	err, _ = results[1].Interface().(error)
	return results[0], err
}

func actionOf(in any) string { return strings.TrimSuffix(reflect.TypeOf(in).Elem().Name(), "Input") }

// does makes a call that must succeed.
func (r rig) does(t *testing.T, in any) {
	t.Helper()
	_, err := r.call(in)
	ok(t, err)
}

// refuses makes a call that must fail with an error code and HTTP status 400.
func (r rig) refuses(t *testing.T, code string, in any) {
	t.Helper()
	_, err := r.call(in)
	wantCode(t, err, code, http.StatusBadRequest)
}

// input returns the SDK's empty input of a describe action with the filters.
func (r rig) input(action string, fs []types.Filter) any {
	in := reflect.New(reflect.ValueOf(r.Client).MethodByName(action).Type().In(1).Elem())
	in.Elem().FieldByName("Filters").Set(reflect.ValueOf(fs))
	return in.Interface()
}

// rowIDs are the paths of the row IDs in the output of describe actions.
var rowIDs = map[string]string{
	"DescribeInstances": "Reservations.Instances.InstanceId", "DescribeNetworkInterfaces": "NetworkInterfaces.NetworkInterfaceId",
	"DescribeRouteTables": "RouteTables.RouteTableId", "DescribeSecurityGroups": "SecurityGroups.GroupId",
	"DescribeSubnets": "Subnets.SubnetId", "DescribeTags": "Tags.ResourceId", "DescribeVpcs": "Vpcs.VpcId",
	"DescribeTrunkInterfaceAssociations": "InterfaceAssociations.AssociationId",
}

// find lists the IDs that a describe action returns for the filters.
func (r rig) find(action string, fs []types.Filter) ([]string, error) {
	out, err := r.call(r.input(action, fs))
	if err != nil {
		return nil, err
	}
	return texts(out, rowIDs[action]), nil
}

// set sets a field of an input, and returns false if the input has no such field.
func set(in any, field string, value any) bool {
	f := reflect.ValueOf(in).Elem().FieldByName(field)
	if f.IsValid() {
		f.Set(reflect.ValueOf(value))
	}
	return f.IsValid()
}

// texts returns the texts in an output at a path of fields, such as "Subnets.SubnetId".
func texts(out reflect.Value, path string) (list []string) {
	switch out = reflect.Indirect(out); out.Kind() {
	case reflect.Slice:
		for i := range out.Len() {
			list = append(list, texts(out.Index(i), path)...)
		}
		return list
	case reflect.Struct:
		field, rest, _ := strings.Cut(path, ".")
		return texts(out.FieldByName(field), rest)
	}
	return []string{out.String()}
}
